"""Commands that bring fanout into other programs: ADK's command line, and shells."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

from tests.integration.cli.conftest import Fanout


def test_adks_commands_get_a_folder_of_the_state_folder_and_others_are_refused(
    lonely_fanout: Fanout,
) -> None:
    printed = lonely_fanout("adk", "--path")
    folder = Path(printed.out.strip())

    assert (printed.code, folder) == (0, lonely_fanout.folder / "state/adk/orchestrator")
    assert "fanout.orchestrator.agent import app" in (folder / "agent.py").read_text()
    assert stat.S_IMODE((folder / "agent.py").stat().st_mode) == 0o600
    for wrong in ([], ["deploy"], ["wbe", "--port", "1"]):
        refused = lonely_fanout("adk", *wrong)
        assert (refused.code, refused.out) == (2, "")
        assert "web, run, api_server" in refused.err


def test_adks_options_are_passed_on_to_adk(lonely_fanout: Fanout) -> None:
    shown = lonely_fanout("adk", "web", "--help", forked=False)

    assert shown.code == 0
    assert "--session_service_uri" in shown.out


def test_each_shell_gets_a_script_that_asks_fanout(lonely_fanout: Fanout, tmp_path: Path) -> None:
    for shell in ("bash", "zsh", "fish"):
        script = lonely_fanout("completion", shell)
        assert (script.code, script.err) == (0, "")
        assert f"_FANOUT_COMPLETE=complete_{shell}" in script.out
    assert lonely_fanout("completion", "csh").code == 2
    (program := tmp_path / "fanout").write_text(
        f"#!{sys.executable}\nfrom fanout.orchestrator.cli import main\nmain()\n"
    )
    program.chmod(0o755)
    asked = "COMP_WORDS=(fanout submit --wai); COMP_CWORD=2; _fanout_completion fanout"
    script = lonely_fanout("completion", "bash").out
    completed = subprocess.run(
        ["bash", "--norc", "-c", f'{script}\n{asked}; echo "${{COMPREPLY[@]}}"'],
        env={**lonely_fanout.env, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert completed.stdout.split() == ["--wait"]
