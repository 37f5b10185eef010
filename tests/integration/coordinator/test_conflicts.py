"""`fanout run` does not end well in silence while a job's changes are not in the folder."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.forked import run_module
from tests.integration.coordinator.driving import task
from tests.integration.scripts import call, calls, conversation, says, write_script
from tests.services import Installation

pytestmark = [pytest.mark.redis, pytest.mark.timeout(90)]

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
    script = write_script(folder, {"agent": "coordinator", **conversation("", *replies)})
    given = ("--workspace", str(workspace), "--yes", "--model", f"scripted:{script}", *options)
    return run_module(
        "orchestrator", "run", "both", *given, environment=place.environment, timeout=80
    )


def test_a_conflict_that_nobody_touched_is_a_failure_and_is_named(
    shared_place: Installation, tmp_path: Path, workspace: Path
) -> None:
    done = run(shared_place, tmp_path, workspace, BOTH, says("done"), options=("--json",))

    assert done.returncode == 1
    told = json.loads(done.stdout)
    (conflict,) = told["conflicts"]
    assert (conflict["path"], conflict["changed_since"]) == ("kept.txt", False)
    assert conflict["reason"]
    (warning,) = [line for line in done.stderr.splitlines() if "WARNING: 1 conflict" in line]
    assert f"kept.txt (job {conflict['job_id']})" in warning
    assert (workspace / "kept.txt").read_text() == "first\n"
    assert (workspace / "other.txt").exists()


def test_one_whose_file_was_changed_since_is_a_warning(
    shared_place: Installation, tmp_path: Path, workspace: Path
) -> None:
    settles = [
        calls(call("read_file", file_path="/workspace/kept.txt")),
        calls(
            call(
                "edit_file", file_path="/workspace/kept.txt", old_string="first", new_string="both"
            )
        ),
    ]
    done = run(shared_place, tmp_path, workspace, BOTH, *settles, says("done"))

    assert (workspace / "kept.txt").read_text() == "both\n"
    assert done.returncode == 0, done.stderr
    assert "changed since, perhaps resolving it" in done.stderr


def test_without_a_conflict_nothing_is_said(
    shared_place: Installation, tmp_path: Path, workspace: Path
) -> None:
    one = calls(task("run: echo new > new.txt"))
    done = run(shared_place, tmp_path, workspace, one, says("done"), options=("--json",))

    assert (done.returncode, json.loads(done.stdout)["conflicts"]) == (0, [])
    assert "conflict" not in done.stderr
