"""What a short command does not import: every library here takes time at each start."""

import subprocess
import sys

import pytest

from fanout.orchestrator.cli.app import COMMANDS
from tests.integration.cli.conftest import Fanout

HEAVY = {
    "celery",
    "kombu",
    "google.adk",
    "google.genai",
    "litellm",
    "fastapi",
    "a2a",
    "mcp",
    "aiohttp",
    "opentelemetry",
    "docker",
    "fsspec",
    "yaml",
}
FOR_DATA = {
    "pydantic",
    "redis",
    "rich",
    "asyncio",
    "fanout.orchestrator.jobs",
    "fanout.orchestrator.client",
}

GROUPS = ("environment", "images", "keys", "mcp", "script")
"""Commands that have commands, besides `agents`, which lists them without one."""

PROGRAM = """
import sys
from fanout.orchestrator.cli import main
try:
    main()
except SystemExit as end:
    print(end.code)
print("\\n".join(sys.modules))
"""


def imported(fanout: Fanout, *arguments: str) -> set[str]:
    """Return the modules that a command had imported when it ended."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=fanout.folder,
        env=fanout.env,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.splitlines())


def test_the_list_of_commands_is_printed_without_importing_a_command(lonely_fanout: Fanout) -> None:
    modules = imported(lonely_fanout, "--help")

    assert {"0", "fanout.orchestrator.cli.app"} <= modules
    assert modules & (HEAVY | FOR_DATA) == set()
    assert [name for name in modules if name.startswith("fanout.orchestrator.cli.commands")] == []


def test_jobs_are_listed_without_what_submits_or_runs_them(fanout: Fanout) -> None:
    modules = imported(fanout, "ps")

    assert {"0", "fanout.orchestrator.cli.commands.inspection"} <= modules
    assert modules & (HEAVY | {"rich"}) == set()


def test_a_job_is_shown_without_what_submits_or_runs_it(fanout: Fanout) -> None:
    job_id = fanout("submit", "Wait.").out.split()[0]

    modules = imported(fanout, "show", job_id)

    assert {"0", "fanout.orchestrator.cli.commands.inspection"} <= modules
    assert modules & (HEAVY | {"rich"}) == set()


@pytest.mark.parametrize("command", ["tree", "show", "result", "logs"])
def test_the_help_of_what_only_reads_imports_no_more(lonely_fanout: Fanout, command: str) -> None:
    assert imported(lonely_fanout, command, "--help") & (HEAVY | {"rich"}) == set()


def test_a_misspelt_command_gets_a_suggestion(lonely_fanout: Fanout) -> None:
    ended = lonely_fanout("cancle")

    assert ended.code == 2
    assert "Did you mean 'cancel'" in ended.err


def test_every_command_has_its_help_text_in_the_list_and_to_itself(lonely_fanout: Fanout) -> None:
    shown = lonely_fanout("--help").out
    sections = shown[shown.index("\nRun:\n") :].splitlines()
    listed = dict(line.split(maxsplit=1) for line in sections if line.startswith("  "))

    assert set(listed) == {*COMMANDS, "agents", *GROUPS}
    for name, summary in listed.items():
        own = " ".join(lonely_fanout(name, "--help").out.split())
        assert summary in own, name


def test_commands_are_listed_in_sections_with_whole_sentences_at_80_columns(
    lonely_fanout: Fanout,
) -> None:
    shown = lonely_fanout("--help").out
    groups = [lonely_fanout(name, "--help").out for name in GROUPS]

    titles = [line for line in shown.splitlines() if line.endswith(":") and line[0] != " "]
    assert titles == ["Options:", "Run:", "Look:", "Land:", "Serve:", "Set up:"]
    commands = shown[shown.index("\nRun:\n") :] + "".join(
        group.partition("Commands:\n")[2] for group in groups
    )
    for line in commands.splitlines():
        is_entry = line.startswith("  ")
        assert len(line) <= 80
        assert not is_entry or line.endswith("."), line
        assert not line.endswith("..."), line


def test_the_option_config_is_understood_after_a_lazy_command(lonely_fanout: Fanout) -> None:
    assert "--config FILE" in lonely_fanout("images", "build", "--help").out
