"""Collects the results of children: what they changed is landed in the agent's files, once.

Without `verify_merges` it is merged, and conflicts are reported. With it, it lands as a train
(`orchestrator.landing.train`): what is not green with the rest goes back to its own agent, and the
parent waits for the rework in its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from fanout.orchestrator.deep_agent import TaskResult
from fanout.orchestrator.delegation.answers import (
    sent_back_result,
    task_error,
    task_result,
)
from fanout.orchestrator.jobs.changes import ChangeBundle, MalformedBundle, NewerBundle
from fanout.orchestrator.jobs.failures import (
    BlobMissing,
    InvalidJob,
    LimitReached,
    NotUnderstood,
    UnknownJob,
)
from fanout.orchestrator.jobs.result import JobResult, Verification
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.landing.train import Train
from fanout.orchestrator.tracing.spans import span
from fanout.orchestrator.workspace.merge_report import MergeReport

from ...heartbeat import HeldLease
from ...sandbox import Sandbox, merge_into
from ..history import History
from ..services import JobServices
from ..session_journal import AttemptJournal
from ..verification import run_verification
from .child_jobs import ChildJobs
from .landing import (
    REPRODUCIBLE,
    ConflictFiles,
    JobLanding,
    Landed,
    Sides,
    landed_message,
    merge_notes,
    outcome_notes,
    read_conflicts,
    train_note,
    undo,
)

MAX_TASKS = 100
"""The most tasks of one train: the files that each touches are kept in an open file."""


class Collector:
    """Collects for one attempt.

    Args:
        services: What all jobs of this worker share.
        sandbox: The job's sandbox, in whose files changes land.
        journal: The attempt's journal, which says whose changes have landed.
        jobs: Submits the reworks of tasks that are sent back.
        lease: The attempt's lease.
        verify_merges: The command that verifies what lands; None: nothing is verified.
        max_reworks: How often a task is sent back.
        ends_at: When the job's time is over, on `elapsed_clock`.
    """

    def __init__(
        self,
        services: JobServices,
        sandbox: Sandbox,
        journal: AttemptJournal,
        jobs: ChildJobs,
        *,
        lease: HeldLease,
        verify_merges: str | None,
        max_reworks: int,
        ends_at: float,
    ) -> None:
        self._services = services
        self._sandbox = sandbox
        self._journal = journal
        self._jobs = jobs
        self._lease = lease
        self._command = verify_merges
        self._max_reworks = max_reworks
        self._ends_at = ends_at
        self._conflict_files = ConflictFiles(sandbox, services.blobs)
        self._lock = asyncio.Lock()
        self._landed: dict[str, Landed] = {}
        """What became of the changes of each child."""
        self._results: dict[str, JobResult] = {}
        """The results of children that have ended."""
        self._adopted: dict[str, JobResult] = {}
        """Of jobs below other ones what is needed to land them, should their results be deleted."""
        self._moved: set[str] = set()
        """The new paths of files that children moved."""
        self._sides: dict[str, Mapping[str, Sides]] = {}
        """The sides of each child's conflicts, by path."""

    async def resume(self, history: History) -> None:
        """Continue from earlier attempts; a landing that did not end is undone.

        Raises:
            BlobMissing: What it touched cannot be put back.
            SandboxFailure: The sandbox failed.
            LeaseLost: The attempt's lease is lost.
        """
        if history.landing is not None:
            await undo(self._sandbox, self._services.blobs, self._journal, history.landing)
            history.undo_landing()
        self._landed = dict(history.landed)
        for job_id in self._landed:
            await self._write_conflicts(job_id)

    def adopt(self, job_id: str, changes: str) -> None:
        """Let the changes of a job land that is not below this one, also when it was deleted.

        Args:
            job_id: The job, which has succeeded.
            changes: The bundle of its changes, which is stored as long as this job.
        """
        self._adopted[job_id] = JobResult(
            job_id=job_id, state=JobState.SUCCEEDED, success=True, changes=changes
        )

    def landed(self, job_id: str) -> Landed | None:
        """Return what became of the changes of a task, or of its last rework; None: nothing yet."""
        return self._landed.get(self.newest(job_id))

    def newest(self, job_id: str) -> str:
        """Return the id of a task's last rework; its own if it was never sent back."""
        while rework := self._landed.get(job_id, {}).get("rework"):
            job_id = str(rework)
        return job_id

    async def collect(self, job_id: str, agent: str) -> TaskResult:
        """Return the result of a child that has ended, its changes landed if it succeeded.

        Args:
            job_id: A child of the job. One that was returned is replaced by its rework.
            agent: The name of its agent.

        Raises:
            NotUnderstood: A newer release wrote the child's changes.
            SandboxFailure: The sandbox failed.
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer.
        """
        pending = await self.land([job_id])
        newest = self.newest(job_id)
        if pending and newest != job_id:
            return sent_back_result(job_id, self._reason(job_id))
        try:
            result = await self._services.ledger.result(newest)
        except UnknownJob as failure:
            return task_error(failure, job_id)
        if result is None:
            return task_error(InvalidJob("The task has not ended."), job_id)
        landed = self._landed.get(newest, {})
        found = task_result(
            result.model_copy(update={"job_id": job_id}),
            None,
            landed,
            self._sides.get(newest, {}),
            agent=agent,
        )
        if newest != job_id:
            found["sent_back"] = self._reason(job_id)
        return found

    def _reason(self, job_id: str) -> str:
        return str(self._landed[job_id].get("reason"))

    async def land(self, job_ids: Sequence[str]) -> frozenset[str]:
        """Land what these children changed, as far as they have ended.

        What has landed before, or was left out, is not landed again: the agent may have gone on
        from there.

        Args:
            job_ids: Children of the job. One that was returned is replaced by its rework.

        Returns:
            Those of them that have not ended; a task that was sent back has not.

        Raises:
            NotUnderstood: A newer release wrote a child's changes.
            SandboxFailure: The sandbox failed.
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer.
        """
        async with self._lock:
            await self._load([self.newest(job_id) for job_id in job_ids])
            results = [self._results.get(self.newest(job_id)) for job_id in job_ids]
            ready = {
                result.job_id: result
                for result in results
                if result and result.success and result.changes
                if result.job_id not in self._landed
            }
            if ready:
                with span("land") as landing:
                    landing.note(tasks=len(ready))
                    await self._land_ready(ready)
            await self._load([self.newest(job_id) for job_id in job_ids])  # some were sent back
            return frozenset(one for one in job_ids if self.newest(one) not in self._results)

    async def _land_ready(self, ready: Mapping[str, JobResult]) -> None:
        bundles = await self._bundles(ready)
        if self._command is not None:
            ids = [*bundles]
            for first in range(0, len(ids), MAX_TASKS):
                together = {one: bundles[one] for one in ids[first : first + MAX_TASKS]}
                await self._land_verified(ready, together, self._command)
        else:
            for job_id, bundle in bundles.items():
                await self._merge(job_id, bundle)

    async def _load(self, job_ids: Sequence[str]) -> None:
        """Read the results of those children that have ended since."""
        missing = [job_id for job_id in job_ids if job_id not in self._results]
        found = await self._services.ledger.results(missing)
        adopted = {one: self._adopted[one] for one in missing if one in self._adopted}
        self._results |= adopted | {one.job_id: one for one in found if one is not None}

    async def _bundles(self, ready: Mapping[str, JobResult]) -> dict[str, Path]:
        """Return the change bundles; an unreadable one does not land, which is reported."""
        bundles = {}
        for job_id, result in ready.items():
            try:
                path = await self._services.blobs.fetch(str(result.changes))
                await asyncio.to_thread(_check, path)
                bundles[job_id] = path
            except NewerBundle as newer:
                raise NotUnderstood(str(newer)) from newer
            except BlobMissing as missing:
                await self._note(job_id, {"outcome": "out", "reason": str(missing)})
            except MalformedBundle:
                reason = "What the task changed cannot be read."
                await self._note(job_id, {"outcome": "out", "reason": reason})
        return bundles

    async def _merge(self, job_id: str, bundle: Path) -> None:
        """Merge what a child changed, and leave out what conflicts."""
        report = await merge_into(self._sandbox, bundle, moved=self._moved)
        await self._note(job_id, {"outcome": "in", **merge_notes(report)})

    async def _land_verified(
        self, ready: Mapping[str, JobResult], bundles: dict[str, Path], command: str
    ) -> None:
        """Land what these children changed as a train, and send back what is not green."""
        landing = JobLanding(
            self._sandbox,
            self._services.blobs,
            self._journal,
            self._lease,
            command=command,
            ends_at=self._ends_at,
            moved=self._moved,
        )
        train: Train[MergeReport] = Train(landing)
        try:
            await landing.begin(bundles)
            await train.run([*bundles])
        except asyncio.CancelledError:
            await landing.undo()
            raise
        finally:
            landing.close()
        note = train_note(train)
        # What is in comes first: its results are where a note about the train is read.
        for job_id, outcome in sorted(train.outcomes.items(), key=lambda one: not one[1].is_in):
            changed = [file.path for file in ready[job_id].files_modified]
            notes = outcome_notes(outcome, landing.reports[job_id], changed)
            if outcome.is_in:
                notes["outcome"] = "in"
            else:
                notes |= await self._send_back(ready[job_id], notes)
            if note:
                notes["reason"] = " ".join(filter(None, (str(notes.get("reason", "")), note)))
                note = ""  # it is said once
            await self._note(job_id, notes)

    async def verify_at_end(self, command: str) -> Verification:
        """Verify the files as they are at the job's end.

        Args:
            command: The job's `verify_merges`.

        Raises:
            SandboxFailure: The sandbox failed.
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer.
        """
        verification = await run_verification(
            self._sandbox, command, ends_at=self._ends_at, env=REPRODUCIBLE
        )
        landed = [job_id for job_id, one in self._landed.items() if one["outcome"] == "in"]
        data = {**verification.model_dump(), "children": [*landed], "at_end": True}
        line = f"verified at the end: exit code {verification.exit_code}"
        await self._journal.note(EventType.VERIFY, data, line)
        return verification

    async def _send_back(self, result: JobResult, notes: Landed) -> Landed:
        """Send a task back to its agent; return what became of it, and why it stays out if so."""
        if self._times_sent_back(result.job_id) >= self._max_reworks:
            return {"outcome": "out"}
        try:
            rework = await self._jobs.send_back(result, landed_message(notes))
        except (LimitReached, InvalidJob) as failure:
            return {"outcome": "out", "reason": f"{notes['reason']} No rework: {failure}"}
        return {"outcome": "sent back", "rework": rework}

    def _times_sent_back(self, job_id: str) -> int:
        times = 0
        sent = {str(one.get("rework")): task for task, one in self._landed.items()}
        while job_id in sent:
            job_id = sent[job_id]
            times += 1
        return times

    async def _note(self, job_id: str, landed: Landed) -> None:
        line = f"{job_id[:4]} {landed['outcome']}"
        await self._journal.note(EventType.CHILD_LANDED, {"id": job_id, **landed}, line)
        self._landed[job_id] = landed
        await self._write_conflicts(job_id)

    async def _write_conflicts(self, job_id: str) -> None:
        """Put both sides of a child's conflicts where the agent can read them."""
        landed = self._landed[job_id]
        paths = [str(one["path"]) for one in read_conflicts(landed)]
        if not paths or landed["outcome"] == "sent back":
            return
        await self._load([job_id])
        result = self._results.get(job_id)
        if result is not None and result.changes:
            written = await self._conflict_files.write(job_id, result.changes, paths)
            self._sides[job_id] = written


def _check(bundle: Path) -> None:
    with ChangeBundle.open(bundle):
        pass
