"""`fanout run` does not end well in silence while a job's changes are not in the folder."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.cli.terminal.formatting import short_id
from tests.forked import run_module
from tests.integration.coordinator.driving import WORKER_SCRIPT, task
from tests.integration.scripts import call, calls, conversation, says, write_script
from tests.services import Installation

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

BOTH = calls(
    task("run: sleep 0.5; echo first > kept.txt"),
    task("run: sleep 1.5; echo second > kept.txt; echo other > other.txt"),
)


def run(
    place: Installation,
    folder: Path,
    workspace: Path,
    *replies: dict[str, Any],
    options: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    parent = {"agent": "coordinator", **conversation("", *replies)}
    script = write_script(folder, parent, *WORKER_SCRIPT)  # a run's model is that of all its tasks
    given = ("--workspace", str(workspace), "--yes", "--model", f"scripted:{script}", *options)
    return run_module("fanout", "run", "both", *given, environment=place.environment, timeout=80)


def test_a_conflict_between_agents_is_named_when_the_run_has_ended(
    shared_place: Installation, tmp_path: Path, workspace: Path
) -> None:
    done = run(shared_place, tmp_path, workspace, BOTH, says("done"), options=("--json",))

    assert done.returncode == 0, done.stderr  # the coordinator was told, and answered
    told = json.loads(done.stdout)
    (conflict,) = told["conflicts_between_agents"]
    assert (conflict["path"], told["conflicts"]) == ("kept.txt", [])
    assert conflict["reason"]
    (warning,) = [line for line in done.stderr.splitlines() if "WARNING: kept.txt" in line]
    assert f"of job {short_id(conflict['job_id'])} was not merged" in warning
    assert (workspace / "kept.txt").read_text() == "first\n"
    assert (workspace / "other.txt").exists()


def test_a_conflict_with_the_person_is_a_failure_and_changes_nothing_of_theirs(
    shared_place: Installation, tmp_path: Path, workspace: Path
) -> None:
    work = calls(call("execute", command="echo theirs > kept.txt; echo new > new.txt"))
    done = run(shared_place, tmp_path, workspace, work, says("done"), options=("--detach",))
    assert done.returncode == 0, done.stderr
    run_id = done.stdout.strip()
    (workspace / "kept.txt").write_text("mine\n")

    for _ in range(2):  # landing twice changes nothing
        attached = run_module(
            "fanout", "attach", run_id, environment=shared_place.environment, timeout=60
        )
        assert attached.returncode == 1
        assert "WARNING: 1 conflict, changes not merged: kept.txt" in attached.stderr
        assert (workspace / "kept.txt").read_text() == "mine\n"
        assert (workspace / "new.txt").read_text() == "new\n"


def test_a_run_that_does_not_land_is_merged_later(
    shared_place: Installation, tmp_path: Path, workspace: Path
) -> None:
    work = calls(call("execute", command="echo new > new.txt"))
    done = run(shared_place, tmp_path, workspace, work, says("done"), options=("--no-land",))
    assert done.returncode == 0, done.stderr
    assert not (workspace / "new.txt").exists()
    (command,) = re.findall(r"fanout (apply \S+ --into \S+)", done.stderr)

    applied = run_module(
        "fanout", *command.split(), environment=shared_place.environment, timeout=60
    )

    assert applied.returncode == 0, applied.stderr
    assert (workspace / "new.txt").read_text() == "new\n"


def test_without_a_conflict_nothing_is_said(
    shared_place: Installation, tmp_path: Path, workspace: Path
) -> None:
    one = calls(task("run: echo new > new.txt"))
    done = run(shared_place, tmp_path, workspace, one, says("done"), options=("--json",))

    assert (done.returncode, json.loads(done.stdout)["conflicts"]) == (0, [])
    assert "not merged" not in done.stderr
