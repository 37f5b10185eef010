"""The files of a job as those in which a train lands what its tasks changed.

What the changes touch is stored before the first of them is put in (`EventType.LANDING`). So an
attempt that dies in the middle leaves nothing half: the next one puts it back (`undo`). What became
of a task's changes, and why, is noted for the journal and for the agent of the task. Both sides of
a conflict are put where an agent can read them: in the sandbox's home, which is no part of the
changes and does not outlive its container.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import structlog
from pydantic import JsonValue

from fanout.orchestrator.cancellation import cancel_or_abandon, ended
from fanout.orchestrator.deep_agent import CHANGES_BREAK, CHANGES_CONFLICT
from fanout.orchestrator.delegation.answers import merge_entries
from fanout.orchestrator.git.text_merge import is_text
from fanout.orchestrator.jobs.changes import ChangeBundle, ChangedFile, FileVersion, MalformedBundle
from fanout.orchestrator.jobs.failures import BlobMissing
from fanout.orchestrator.jobs.result import Verification
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.landing.failing_tests import FailingTest, failing_tests
from fanout.orchestrator.landing.restore_point import RestorePoint
from fanout.orchestrator.landing.train import Outcome, Train
from fanout.orchestrator.shortening import count
from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.orchestrator.workspace.merge_report import MergeReport

from ...heartbeat import HeldLease
from ...sandbox import WORKSPACE, Sandbox, SandboxFolder, in_folder, merge_into
from ..session_journal import AttemptJournal
from ..verification import run_verification

log = structlog.get_logger(__name__)

REPRODUCIBLE = {"PYTHONDONTWRITEBYTECODE": "1"}
"""Variables for the command: files are exchanged within a second, and Python takes a compiled file
of the same second and size for that of the new source."""

UNDO_SECONDS = 5.0
"""The time for taking out unverified changes when the job is stopped. It takes milliseconds a file;
a host that needs longer ends the job late, but not with unverified changes."""
SHOWN_CONFLICTS = 50
"""The most conflicts of one landing in the journal and in a message: as many as one reads before
beginning."""

SHOWN_PATHS = 200
"""The most paths of files that a landing merged: as many as a result names itself."""

NAMED = 3
"""Paths or tests in one sentence; the list of conflicts and the verification's output have the
others."""

Landed = dict[str, JsonValue]
"""The data of a `child.landed`: `outcome` (in, out, sent back), and where they apply `applied` (a
number), `paths` (the first of these), `conflicts` (path, reason), `reason`, `verification` and
`rework` (the id of a job)."""
CONFLICTS_FOLDER = "conflicts"
MAX_CONFLICT_FILES = 50
"""The most files with conflicts of one job: as many as one reads."""
MAX_CONFLICT_FILE_BYTES = 1024**2
"""Larger ones are not texts that an agent compares."""
MAX_DIFF_CHARACTERS = 2_000
"""The longest difference of each file in the result of a tool: the whole versions can be read."""

Sides = dict[str, JsonValue]
"""`diff` (of the other side, shortened) and the paths of `theirs` and `yours`, where they exist."""


class JobLanding:
    """One landing in the files of a job; a `LandingFiles` whose conflicts are merge reports.

    Args:
        sandbox: The job's sandbox.
        blobs: Where what the changes touch is stored.
        journal: The attempt's journal.
        lease: The attempt's lease.
        command: The job's `verify_merges`.
        ends_at: When the job's time is over, on `elapsed_clock`.
        moved: As of `merge_into`.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        blobs: BlobStore,
        journal: AttemptJournal,
        lease: HeldLease,
        *,
        command: str,
        ends_at: float,
        moved: set[str],
    ) -> None:
        self._lease = lease
        self._sandbox = sandbox
        self._blobs = blobs
        self._journal = journal
        self._command = command
        self._ends_at = ends_at
        self._moved = moved
        self._bundles: dict[str, Path] = {}
        self._base_content: RestorePoint | None = None
        self._points: list[RestorePoint] = []
        self.reports: dict[str, MergeReport] = {}
        """The reports of the last merge of each job's changes."""

    async def begin(self, bundles: dict[str, Path]) -> None:
        """Store what these changes touch as it is, so that the landing can be undone.

        Args:
            bundles: The change bundle of each job.

        Raises:
            MalformedBundle: A bundle cannot be read.
            JobFailure: What they touch cannot be stored, or the sandbox failed.
        """
        self._bundles = bundles
        self._base_content = await self._take(list(bundles.values()))
        before = await self._blobs.put_file(self._base_content.archive)
        data: dict[str, JsonValue] = {"children": [*bundles], "before": before}
        self._journal.activity.begin("landing")
        await self._journal.note(EventType.LANDING, data, f"lands {count(len(bundles), 'task')}")

    async def put_in(self, job_id: str) -> MergeReport | None:
        """Merge a job's changes; see `LandingFiles.put_in`.

        Raises:
            MalformedBundle: The bundle cannot be read.
            SandboxFailure: The sandbox failed.
        """
        self._points.append(await self._take([self._bundles[job_id]]))
        report = await merge_into(self._sandbox, self._bundles[job_id], moved=self._moved)
        self.reports[job_id] = report
        if not report.conflicts:
            return None
        await self.take_out(len(self._points) - 1)
        return report

    async def take_out(self, depth: int) -> None:
        """Take out what was put in last; see `LandingFiles.take_out`.

        Raises:
            SandboxFailure: The sandbox failed.
        """
        while len(self._points) > depth:
            await in_folder(self._sandbox, self._points[-1].restore)
            self._points.pop().close()

    async def verify(self, job_ids: Sequence[str]) -> Verification:
        """Run the command; see `LandingFiles.verify`.

        Raises:
            SandboxFailure: The sandbox failed.
            LeaseLost: The attempt's lease is lost.
        """
        verification = await run_verification(
            self._sandbox, self._command, ends_at=self._ends_at, env=REPRODUCIBLE
        )
        # Reading a long output takes a while, so it is not left to the train, which has no thread.
        await asyncio.to_thread(failing_tests, verification)
        data = {
            **verification.model_dump(),
            "children": [*job_ids],
            "of": len(self._bundles),
        }
        line = f"verified {count(len(job_ids), 'task')}: exit code {verification.exit_code}"
        await self._journal.note(EventType.VERIFY, data, line)
        return verification

    async def undo(self) -> None:
        """Take out everything: the job is stopped, and its result has nothing unverified.

        Its caller is cancelled, and may be cancelled again meanwhile.
        """
        if self._base_content is None or not self._lease.is_held:  # another attempt may have begun
            return
        undoing = asyncio.create_task(in_folder(self._sandbox, self._base_content.restore))
        if not await ended(UNDO_SECONDS, undoing):
            await cancel_or_abandon(0, undoing)
            log.warning("landing not undone", error="TimeoutError")
        elif not undoing.cancelled() and (failure := undoing.exception()) is not None:
            log.warning("landing not undone", error=type(failure).__name__)

    def close(self) -> None:
        """Delete what was kept to take changes out."""
        if self._base_content is not None:
            self._base_content.close()
        while self._points:
            self._points.pop().close()

    async def _take(self, paths: Sequence[Path]) -> RestorePoint:
        def take(folder: SandboxFolder) -> RestorePoint:
            with ExitStack() as stack:
                bundles = [stack.enter_context(ChangeBundle.open(path)) for path in paths]
                return RestorePoint.take(folder, bundles)

        return await in_folder(self._sandbox, take)


async def undo(sandbox: Sandbox, blobs: BlobStore, journal: AttemptJournal, before: str) -> None:
    """Put back what a landing that did not end had touched.

    Args:
        sandbox: The job's sandbox.
        blobs: Where it is stored.
        journal: The attempt's journal.
        before: The blob.

    Raises:
        BlobMissing: It is not stored any more.
        JobFailure: The sandbox failed, or the attempt's lease is lost.
    """
    archive = await asyncio.to_thread((await blobs.fetch(before)).open, "rb")
    point = await asyncio.to_thread(RestorePoint.open, archive)
    try:
        await in_folder(sandbox, point.restore)
    finally:
        point.close()
    await journal.note(EventType.LANDING, {"children": []}, "landing undone")


def merge_notes(report: MergeReport) -> Landed:
    """Return the entries of a `child.landed` about a merge, each list with its first entries."""
    listed = merge_entries(report).items()
    first = {
        name: one[: SHOWN_CONFLICTS if name == "conflicts" else SHOWN_PATHS]
        for name, one in listed
        if isinstance(one, list)
    }
    return {"applied": len(report.applied), **first}


def outcome_notes(
    outcome: Outcome[MergeReport], report: MergeReport, changed: Sequence[str]
) -> Landed:
    """Return the entries about the outcome of a train, all but `outcome` itself.

    Args:
        outcome: What became of a task's changes.
        report: The report of their last merge.
        changed: The paths that the task changed.
    """
    if outcome.is_in:
        return merge_notes(report)
    notes: Landed = {"applied": 0, "reason": _reason(outcome, changed)}
    if outcome.conflicts is not None:
        notes["conflicts"] = merge_notes(outcome.conflicts)["conflicts"]
    elif outcome.verification is not None:
        notes["verification"] = outcome.verification.model_dump()
    return notes


def train_note(train: Train[MergeReport]) -> str:
    """Return what is to be said about a train as a whole; empty: nothing."""
    if train.is_flaky:
        return "The verification is flaky: it gave two answers about the same files."
    if train.failed_before is None or train.verification is None:
        return ""
    code = train.verification.exit_code
    if code == 0:
        return "The verification failed before these changes, and passes with them."
    before = "The verification failed before these changes too, and still fails"
    tests = failing_tests(train.verification)
    if not train.is_compared or tests is None:
        return (
            f"{before} (exit code {code}). Its output does not say which tests fail, so no change "
            "was blamed."
        )
    return f"{before} (exit code {code}), in no test that passed before: {_named(tests.failing)}."


def landed_message(landed: Landed) -> str:
    """Return the message for the agent of a returned task."""
    verification = landed.get("verification")
    if isinstance(verification, Mapping):
        return CHANGES_BREAK.format(**verification, why=landed["reason"])
    lines = [f"- {one['path']}: {one['reason']}" for one in read_conflicts(landed)]
    return CHANGES_CONFLICT.format(conflicts="\n".join(lines))


def read_conflicts(landed: Landed) -> list[Mapping[str, JsonValue]]:
    """Return the conflicts of a `child.landed`: `path` and `reason` of each."""
    conflicts = landed.get("conflicts")
    found = conflicts if isinstance(conflicts, list) else []
    return [one for one in found if isinstance(one, Mapping)]


def _reason(outcome: Outcome[MergeReport], changed: Sequence[str]) -> str:
    if outcome.conflicts is not None:
        paths = [one.path for one in outcome.conflicts.conflicts]
        return f"It conflicts with what the files have: {_first(paths)}."
    failure = f"(exit code {outcome.verification.exit_code if outcome.verification else 1})"
    subject = f"{_first(changed)}: " if changed else ""
    if not outcome.is_cause:
        return (
            f"{subject}the verification fails with this change and others together {failure}; which "
            "of them is the cause was not found within the train's verifications."
        )
    if outcome.new_failures:
        return f"{subject}this change breaks {_named(outcome.new_failures)} {failure}."
    return f"{subject}this change breaks the verification, which passes without it {failure}."


def _named(tests: Collection[FailingTest]) -> str:
    return _first(sorted(test.name for test in tests))


def _first(names: Sequence[str]) -> str:
    """Return the first names of a list, and how many it has besides."""
    left = len(names) - NAMED
    more = f" and {left} more" if left > 0 else ""
    return ", ".join(names[:NAMED]) + more


class ConflictFiles:
    """Writes both sides for one attempt.

    Args:
        sandbox: The job's sandbox.
        blobs: Where the other side is stored.
    """

    def __init__(self, sandbox: Sandbox, blobs: BlobStore) -> None:
        self._sandbox = sandbox
        self._blobs = blobs

    async def write(self, job_id: str, changes: str, paths: Sequence[str]) -> Mapping[str, Sides]:
        """Write both sides of these paths, and return them by path.

        What cannot be written is left out: the changes are in their bundle all the same.

        Args:
            job_id: The job whose changes conflict; empty for those with which this one begins.
            changes: The blob of its change bundle.
            paths: The paths that conflict.

        Raises:
            SandboxFailure: The sandbox failed.
        """
        try:
            bundle = await self._blobs.fetch(changes)
            theirs = await asyncio.to_thread(
                lambda: [*_sides(bundle, set(paths[:MAX_CONFLICT_FILES]))]
            )
        except (BlobMissing, MalformedBundle):
            return {}
        return {one.path: await self._written(job_id, one, *sides) for one, *sides in theirs}

    async def _written(
        self, job_id: str, file: ChangedFile, before: bytes | None, after: bytes | None
    ) -> Sides:
        folder = "/".join(filter(None, (self._sandbox.home, CONFLICTS_FOLDER, job_id)))
        sides: Sides = {}
        if diff := _diff(file.path, before, after):
            sides["diff"] = diff
        with suppress(OSError):
            yours = await self._sandbox.read_bytes(
                f"{WORKSPACE}/{file.path}", MAX_CONFLICT_FILE_BYTES
            )
            sides["yours"] = await self._write(f"{folder}/yours/{file.path}", yours)
        with suppress(OSError):
            if after is not None:
                sides["theirs"] = await self._write(f"{folder}/theirs/{file.path}", after)
        return sides

    async def _write(self, path: str, content: bytes) -> str:
        await self._sandbox.write_bytes(path, content)
        return path


def _sides(
    path: Path, wanted: set[str]
) -> Iterator[tuple[ChangedFile, bytes | None, bytes | None]]:
    with ChangeBundle.open(path) as bundle:
        for file in bundle.changes.files:
            if file.path in wanted:
                yield file, _content(bundle, file.before), _content(bundle, file.after)


def _content(bundle: ChangeBundle, version: FileVersion | None) -> bytes | None:
    if version is None or version.kind != "file" or version.size_bytes > MAX_CONFLICT_FILE_BYTES:
        return None
    return bundle.content(version)


def _diff(path: str, before: bytes | None, after: bytes | None) -> str:
    if not all(is_text(one or b"") for one in (before, after)):
        return ""
    old, new = ((one or b"").decode(errors="replace").splitlines() for one in (before, after))
    text = "\n".join(difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", lineterm=""))
    return text if len(text) <= MAX_DIFF_CHARACTERS else text[:MAX_DIFF_CHARACTERS] + "\n…"
