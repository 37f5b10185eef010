"""The parent's side of a run: submits, answers approvals, cancels, waits.

Patient while Redis is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.failures import ApprovalRefused, LedgerUnavailable
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import JobSpec, Limits
from fanout.orchestrator.jobs.state import JobState
from tests.chaos.plan import JOB_KINDS, PlannedJob

AGAIN_SECONDS = 0.5
ANSWER_SECONDS = 0.5
"""Between two looks at what waits for a person."""

Answer = TypeVar("Answer")


@dataclass
class Submitted:
    """A job of which the parent was told that it is taken."""

    planned: PlannedJob
    result: JobResult | None = None
    """The first that was seen."""
    cancelled_in: JobState | None = None
    """The state in which the cancellation found it."""


class Workload:
    """Keeps so many jobs under way, until told to stop."""

    def __init__(
        self, client: JobClient, jobs: Iterator[PlannedJob], window: int, workspace: Path
    ) -> None:
        self._client = client
        self._jobs = jobs
        self._room = asyncio.Semaphore(window)
        self._workspace = workspace
        self._until = 0.0
        self._under_way: set[asyncio.Task[None]] = set()
        self.first_success = asyncio.Event()
        """A job has succeeded: workers are at work, and faults have something to hit."""
        self.submitted: dict[str, Submitted] = {}

    async def run(self, seconds: float) -> None:
        """Submit for so long; returns when no more jobs are begun."""
        end = time.monotonic() + seconds
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, end - time.monotonic())):
                    await self._room.acquire()
            if time.monotonic() >= end:
                return
            task = asyncio.create_task(self._one(next(self._jobs)))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            task.add_done_callback(lambda _: self._room.release())

    async def ended(self, seconds: float) -> int:
        """Wait for those under way; how many have not ended by then."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=seconds)
        left = list(self._under_way)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        return len(left)

    async def answer_approvals(self) -> None:
        """Decide on whatever waits, for ever."""
        while True:
            for approval in await patiently(self._client.approvals):
                job = self.submitted.get(approval.job_id)
                if job is not None:
                    await self._answer(approval.id, reject=job.planned.kind == "rejected")
            await asyncio.sleep(ANSWER_SECONDS)

    async def _answer(self, approval_id: str, *, reject: bool) -> None:
        with contextlib.suppress(ApprovalRefused):  # an answer that got lost was taken all the same
            await patiently(
                lambda: self._client.answer(approval_id, "reject" if reject else "approve")
            )

    async def _one(self, planned: PlannedJob) -> None:
        workspace = self._workspace if planned.with_workspace else None
        spec = JobSpec(
            id=planned.id,
            agent=planned.agent,
            description=planned.description,
            max_attempts=planned.max_attempts,
            limits=Limits(timeout_seconds=planned.timeout_seconds),
        )
        await patiently(lambda: self._client.submit(spec, workspace=workspace))
        job = self.submitted[planned.id] = Submitted(planned)
        if planned.cancel_after_seconds is not None:
            await asyncio.sleep(planned.cancel_after_seconds)
            job.cancelled_in = (await patiently(lambda: self._client.cancel(planned.id))).state
        job.result = await patiently(lambda: self._client.wait(planned.id))
        if job.result.success:  # a cancelled one may never have run
            self.first_success.set()

    @property
    def expects_ends(self) -> dict[str, tuple[str, ...]]:
        """In which states each job may end."""
        return {job_id: JOB_KINDS[job.planned.kind].ends for job_id, job in self.submitted.items()}


async def patiently(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Ask until there is an answer: Redis is away now and then, and the disk of the blobs full."""
    while True:
        try:
            return await ask()
        except (LedgerUnavailable, OSError):
            await asyncio.sleep(AGAIN_SECONDS)
