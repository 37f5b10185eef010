"""`fanout agents new`: a commented definition that works at once, and never replaces one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fanout.orchestrator.cli.app import app
from fanout.orchestrator.configuration.agent_definitions import load_agent_definitions


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a user's agents are, which does not exist yet."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "FANOUT_CONFIG", "FANOUT_AGENTS_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / ".config" / "fanout" / "agents"


def agents(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["agents", *arguments])


def test_a_new_agent_works_at_once_and_each_of_its_examples_does(folder: Path) -> None:
    made = agents("new", "mine", "--description", 'Says "yes": always')

    assert made.exit_code == 0, made.output
    path = folder / "mine.yaml"
    assert made.stdout == f"{path}\n"
    assert 'fanout run "YOUR GOAL" --agent mine' in made.stderr
    assert load_agent_definitions(folder)["mine"].description == 'Says "yes": always'
    assert "mine " in agents().stdout
    text = path.read_text()
    examples = re.findall(r"^# ([a-z_]+: .*)$", text[text.index("# Each of these") :], re.MULTILINE)
    assert len(examples) == 8
    path.write_text(text + "\n".join(examples) + "\n")
    assert load_agent_definitions(folder)["mine"].limits.max_model_calls == 50


def test_what_exists_is_never_changed(folder: Path) -> None:
    assert agents("new", "mine").exit_code == 0
    (folder / "mine.yaml").write_text("edited")

    again = agents("new", "mine")

    assert (again.exit_code, (folder / "mine.yaml").read_text()) == (2, "edited")
    assert "exists: edit it, or choose another name" in again.stderr


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("My Agent", "Try: fanout agents new my-agent"),
        ("../up", "Try: fanout agents new up"),
        ("é", "is not a valid agent name"),
        ("x" * 64, "1 to 63"),
        ("tester", "fanout has an agent tester already"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_with_what_to_do(
    name: str, told: str, folder: Path
) -> None:
    refused = agents("new", name)

    assert refused.exit_code == 2
    assert told in refused.stderr
    assert not folder.exists()
