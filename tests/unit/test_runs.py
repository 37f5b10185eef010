"""Where runs land, in which order, and once; what is printed at their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast, get_args

import pytest

from fanout.orchestrator.cli.commands.run_report import (
    RunOutcome,
    print_outcome,
    run_exit_code,
)
from fanout.orchestrator.cli.terminal.exit_codes import ExitCode
from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.jobs.result import JobError, JobResult, Usage
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.landing.conflicts import Unmerged
from fanout.orchestrator.landing.runs import Landing, LandingReport, Runs, land
from fanout.orchestrator.workspace.merge_report import Conflict, HeldBack, MergedFile, MergeReport
from fanout.orchestrator.workspace.three_way import ConflictKind
from tests.bundles import BundleBuilder

BLOB = "0" * 64
CONFLICT_KIND = get_args(ConflictKind)[0]


def result(job_id: str, **fields: Any) -> JobResult:
    given = {"state": JobState.SUCCEEDED, "success": True, "changes": BLOB, **fields}
    return JobResult.model_validate({"job_id": job_id, **given})


class Client:
    """Merges nothing, and notes what it was asked to merge."""

    def __init__(self, report: MergeReport) -> None:
        self.report = report
        self.merged: list[str] = []

    async def result(self, job_id: str) -> JobResult:
        return result(job_id)

    async def merge(self, ended: JobResult, _folder: Path, **_: bool) -> MergeReport:
        self.merged.append(ended.job_id)
        return self.report

    @asynccontextmanager
    async def changes(self, _job_id: str) -> AsyncIterator[ChangeBundle]:
        with ChangeBundle.open(BundleBuilder().edit("b", b"base", b"theirs").build()) as opened:
            yield opened


APPLIED = MergedFile.model_validate({"path": "a", "change": "added", "how": "taken"})
CONFLICT = Conflict(path="b", kind=CONFLICT_KIND, reason="both did")
HELD = HeldBack.model_validate({"path": ".envrc", "change": "added", "reason": "a shell"})
WHOLE = MergeReport(applied=(APPLIED,))
PART = MergeReport(applied=(APPLIED,), conflicts=(CONFLICT,), held_back=(HELD,))


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "state")


def landed(client: Client, runs: Runs, job_id: str, **fields: Any) -> LandingReport | None:
    landing = runs.landing(job_id)
    assert landing is not None
    return asyncio.run(land(cast(Any, client), runs, result(job_id, **fields), landing))


def test_a_run_lands_once_when_all_of_it_has_landed(runs: Runs, tmp_path: Path) -> None:
    client = Client(PART)
    runs.remember("r", Landing(workspace=tmp_path))
    landed(client, runs, "r")
    assert runs.conflicts.place("r").is_dir()
    client.report = WHOLE
    landed(client, runs, "r")
    assert not runs.conflicts.place("r").exists()
    landed(client, runs, "r")

    assert client.merged == ["r", "r"]


def test_the_runs_before_land_first_unless_they_have(runs: Runs, tmp_path: Path) -> None:
    client = Client(WHOLE)
    elsewhere = tmp_path / "elsewhere"
    runs.remember("0", Landing(workspace=elsewhere))
    runs.remember("1", Landing(workspace=tmp_path, continues="0", lands=False))
    runs.remember("2", Landing(workspace=tmp_path, continues="1", lands=False))
    runs.remember("3", Landing(workspace=tmp_path, continues="2"))
    runs.remember("4", Landing(workspace=tmp_path, continues="3"))

    landed(client, runs, "3")
    landed(client, runs, "4")

    assert client.merged == ["1", "2", "3", "4"]


def test_what_failed_or_waits_for_a_person_does_not_land(runs: Runs, tmp_path: Path) -> None:
    client = Client(WHOLE)
    runs.remember("r", Landing(workspace=tmp_path))
    runs.remember("later", Landing(workspace=tmp_path, lands=False))

    assert landed(client, runs, "r", success=False, state="failed") is None
    assert landed(client, runs, "later") is None
    runs.remember("gone", Landing(workspace=tmp_path / "gone"))
    with pytest.raises(InvalidJob, match="no longer exists"):
        landed(client, runs, "gone")


def test_old_and_broken_records_are_no_runs(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.orchestrator.landing.runs.KEPT_RUNS", 5)
    for number in range(8):
        runs.remember(f"run-{number}", Landing(workspace=tmp_path))
    (tmp_path / "state" / "runs" / "run-5.json").write_text("{")

    assert runs.landing("run-2") is None
    assert runs.landing("run-3") == Landing(workspace=tmp_path)
    assert runs.landing("run-5") is None
    assert runs.landing("run-7") == Landing(workspace=tmp_path)


def test_the_end_of_a_run_says_what_did_not_land_and_the_next_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = result("r", summary="Done.", files_modified=[{"path": "a", "change": "added"}])
    outcome = RunOutcome(
        ended,
        Usage(),
        LandingReport(PART, conflicts_kept=tmp_path / "kept"),
        (Unmerged("child", "c.txt", "same lines"),),
    )

    print_outcome(outcome, Landing(workspace=tmp_path), None)

    out, err = capsys.readouterr()
    assert out == "Done.\n"
    assert "WARNING: c.txt of job child was not merged" in err
    assert "WARNING: 1 conflict, changes not merged: b.\n  See: fanout diff r --conflicts" in err
    assert f"both sides are in {tmp_path / 'kept'}" in err
    assert "fanout apply r --include-executable-config" in err
    assert run_exit_code(outcome) is ExitCode.WORK_FAILED


def test_a_failed_run_says_why_and_where_its_changes_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = JobError(type="VerificationFailed", message="It did not pass.", retryable=False)
    ended = result("r", state="failed", success=False, error=error)
    outcome = RunOutcome(ended, Usage(), None, ())

    print_outcome(outcome, None, None)
    text = capsys.readouterr().err
    print_outcome(outcome, None, {"left_at_home": []})

    assert "It did not pass.\n  To see the output: fanout result r\n" in text
    assert "VerificationFailed" not in text
    assert "fanout apply r --into DIR" in text
    assert '"landed": null' in capsys.readouterr().out
    assert run_exit_code(outcome) is ExitCode.WORK_FAILED
