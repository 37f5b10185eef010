"""The files of a job as those in which a train lands what its tasks changed.

What the changes touch is stored before the first of them is put in (`EventType.LANDING`). So an
attempt that dies in the middle leaves nothing half: the next one puts it back (`undo`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import structlog
from pydantic import JsonValue

from fanout.orchestrator.cancellation import cancel_or_abandon, ended
from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.jobs.result import Verification
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.landing.restore_point import RestorePoint
from fanout.orchestrator.shortening import count
from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.orchestrator.workspace.merge_report import MergeReport
from fanout.workers.agent.session_journal import AttemptJournal
from fanout.workers.agent.verification import run_verification
from fanout.workers.heartbeat import HeldLease
from fanout.workers.sandbox import Sandbox, SandboxFolder, in_folder, merge_into

log = structlog.get_logger(__name__)

REPRODUCIBLE = {"PYTHONDONTWRITEBYTECODE": "1"}
"""For the command: files are exchanged within a second, and Python takes a compiled file of the
same second and size for that of the new source."""

UNDO_SECONDS = 5.0
"""For taking out what is not verified when the job is stopped. It takes milliseconds a file; a host
that needs longer ends the job late, but not with changes that nothing has verified."""


class JobLanding:
    """One landing in the files of a job; a `LandingFiles` whose conflicts are merge reports.

    Args:
        sandbox: The job's sandbox.
        blobs: Where what the changes touch is stored.
        journal: The attempt's journal.
        lease: The attempt's lease.
        command: The job's `verify_merges`.
        ends_at: When the job's time is over, on `elapsed_clock`.
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
    ) -> None:
        self._lease = lease
        self._sandbox = sandbox
        self._blobs = blobs
        self._journal = journal
        self._command = command
        self._ends_at = ends_at
        self._bundles: dict[str, Path] = {}
        self._before: RestorePoint | None = None
        self._points: list[RestorePoint] = []
        self.reports: dict[str, MergeReport] = {}
        """Of the last merge of each job's changes."""

    async def begin(self, bundles: dict[str, Path]) -> None:
        """Store what these changes touch as it is, so that the landing can be undone.

        Args:
            bundles: The change bundle of each job.

        Raises:
            MalformedBundle: A bundle cannot be read.
            JobFailure: What they touch cannot be stored, or the sandbox failed.
        """
        self._bundles = bundles
        self._before = await self._take(list(bundles.values()))
        before = await self._blobs.put_file(self._before.archive)
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
        report = await merge_into(self._sandbox, self._bundles[job_id])
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
        if self._before is None or not self._lease.is_held:  # another attempt may have begun
            return
        undoing = asyncio.create_task(in_folder(self._sandbox, self._before.restore))
        if not await ended(UNDO_SECONDS, undoing):
            await cancel_or_abandon(0, undoing)
            log.warning("landing not undone", error="TimeoutError")
        elif not undoing.cancelled() and (failure := undoing.exception()) is not None:
            log.warning("landing not undone", error=type(failure).__name__)

    def close(self) -> None:
        """Delete what was kept to take changes out."""
        if self._before is not None:
            self._before.close()
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
