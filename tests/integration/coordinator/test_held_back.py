"""What becomes code on the host waits for a person's word, from the run to its landing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.cli.terminal import held_back, output
from fanout.orchestrator.workspace.merge_report import HeldBack
from tests.forked import run_module
from tests.integration.coordinator.driving import WORKER_SCRIPT, task
from tests.integration.scripts import call, calls, conversation, says, write_script
from tests.services import Installation

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

WRITES_CODE = calls(
    task(
        "run: mkdir .vscode; echo '{}' > .vscode/tasks.json; echo x > .envrc; echo y > new.txt;"
        " echo z > .newtoolrc; echo q > .gitkeep"
    )
)
HELD = {".envrc", ".vscode/tasks.json"}


def fanout(place: Installation, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_module("fanout", *arguments, environment=place.environment, timeout=80)


def run(
    place: Installation, workspace: Path, *replies: dict[str, Any], options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    script = write_script(
        workspace.parent,
        {"agent": "coordinator", **conversation("", *replies, says("done"))},
        *WORKER_SCRIPT,  # the model of a run is that of all its tasks
    )
    given = ("--workspace", str(workspace), "--yes", "--model", f"scripted:{script}", "--json")
    return fanout(place, "run", "goal", *given, *options)


def test_a_run_lists_what_it_held_back_and_an_apply_lands_it(
    shared_place: Installation, workspace: Path
) -> None:
    done = run(shared_place, workspace, WRITES_CODE)

    assert done.returncode == 0, done.stderr
    changes = json.loads(done.stdout)["held_back"]
    assert {change["path"] for change in changes} == HELD
    job_id = changes[0]["job_id"]
    assert "held back .envrc: a shell or a version manager runs it" in done.stderr
    assert f"fanout apply {job_id[-8:]} --include-executable-config" in done.stderr
    landed = {path.name for path in workspace.iterdir()}
    assert landed == {"kept.txt", "new.txt", ".newtoolrc", ".gitkeep"}
    assert json.loads(done.stdout)["hidden"] == [".newtoolrc"]
    assert "hidden    .newtoolrc: a tool may obey it" in done.stderr

    into = ("--into", str(workspace))
    stat = fanout(shared_place, "diff", job_id, "--stat")
    assert "held back by a merge: .envrc" in stat.stdout
    told = json.loads(fanout(shared_place, "diff", job_id, "--json").stdout)
    assert {change["path"] for change in told["held_back"]} == HELD

    without = fanout(shared_place, "apply", job_id, *into, "--json")
    assert without.returncode == 1
    assert {change["path"] for change in json.loads(without.stdout)["held_back"]} == HELD
    assert not (workspace / ".envrc").exists()

    landed = fanout(shared_place, "apply", job_id, *into, "--include-executable-config")
    assert landed.returncode == 0, landed.stderr
    assert (workspace / ".envrc").read_text() == "x\n"
    assert (workspace / ".vscode/tasks.json").exists()
    assert fanout(shared_place, "apply", job_id, *into).returncode == 0


def test_a_run_lands_it_when_a_person_said_so_before(
    shared_place: Installation, workspace: Path
) -> None:
    done = run(shared_place, workspace, WRITES_CODE, options=("--include-executable-config",))

    assert json.loads(done.stdout)["held_back"] == []
    assert (workspace / ".envrc").read_text() == "x\n"


def test_the_coordinator_can_neither_say_so_nor_write_it_itself(
    shared_place: Installation, workspace: Path
) -> None:
    asks = call("task", description="run: echo x > .envrc", include_executable_config=True)
    writes = call("write_file", file_path="/workspace/.vscode/tasks.json", content="{}")

    done = run(shared_place, workspace, calls(asks, writes))

    assert done.returncode == 0, done.stderr
    held = json.loads(done.stdout)["held_back"]
    assert [change["path"] for change in held] == [".vscode/tasks.json"]
    assert sorted(path.name for path in workspace.iterdir()) == ["kept.txt"]


CHANGES = [HeldBack.model_validate({"path": ".envrc", "change": "added", "reason": "a shell"})]


@pytest.mark.parametrize("word", [True, False])
def test_a_person_at_a_terminal_is_asked_and_no_is_the_default(
    monkeypatch: pytest.MonkeyPatch, word: bool
) -> None:
    asked: list[Any] = []

    def confirm(question: str, **options: Any) -> bool:
        asked.append(options.get("default", False))
        return word

    monkeypatch.setattr(output, "stdin_is_terminal", lambda: True)
    monkeypatch.setattr(output, "stderr_is_terminal", lambda: True)
    monkeypatch.setattr("typer.confirm", confirm)

    assert held_back.may_land(CHANGES) == word
    assert not held_back.may_land(CHANGES, ask=False)
    assert not held_back.may_land([])
    assert asked == [False]
