"""Completes the results of jobs that ended before their changes were collected.

A stopped job ends within two seconds, however many are stopped at once; its files stay until its
changes are collected, by its own worker, or by another one of the same host if that has died.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.orchestrator.jobs.failures import JobFailure
from fanout.orchestrator.jobs.store.ledger import Ledger
from fanout.orchestrator.jobs.store.records import Uncollected
from fanout.orchestrator.jobs.worker_info import WorkerInfo

from ..attempt.changes import ChangeCollections
from ..sandbox import SandboxProvider
from .own_ledger import OwnLedger

log = structlog.get_logger(__name__)

LOOK_SECONDS = 5.0
"""Between two looks for jobs whose worker has died; a worker's own are collected at once."""
LOST_SECONDS = 3600.0
"""How long the changes of an ended job are awaited whose host has no worker, or which could not be
collected: long enough to start a host again."""


class LateChanges:
    """Collects the changes of ended jobs on this worker's host.

    Args:
        ledger: Lists the jobs, and holds their results.
        provider: Has their files.
        own_ledger: Says which workers live.
        collections: Stores the changes.
        registration: Returns this worker's current registration.
    """

    def __init__(
        self,
        ledger: Ledger,
        provider: SandboxProvider,
        own_ledger: OwnLedger,
        collections: ChangeCollections,
        registration: Callable[[], WorkerInfo],
    ) -> None:
        self._ledger = ledger
        self._provider = provider
        self._own_ledger = own_ledger
        self._collections = collections
        self._registration = registration
        self._ended = asyncio.Event()
        self._running: dict[str, asyncio.Task[None]] = {}

    def look(self) -> None:
        """Collect at once: a job of this worker has ended without its changes."""
        self._ended.set()

    async def run(self) -> None:
        """Collect until cancelled; failures are logged, and repeated."""
        try:
            while True:
                self._ended.clear()
                try:
                    await self.begin()
                except JobFailure as error:
                    log.warning("changes of ended jobs not looked for", error=str(error))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._ended.wait()
        finally:
            await cancel_and_wait(*self._running.values())

    async def finish(self) -> None:
        """Wait for the collections that have begun."""
        await asyncio.gather(*self._running.values())

    async def begin(self) -> None:
        """Begin to collect the changes of all jobs for which this worker is to do it.

        Raises:
            LedgerReplaced: Redis holds another ledger.
            LedgerUnavailable: Redis does not respond.
        """
        worker = self._registration()
        waiting = [
            job
            for job in await self._ledger.uncollected()
            if job.job_id not in self._running
            and (job.host == worker.host or job.ended_seconds > LOST_SECONDS)
        ]
        if not waiting:
            return  # only a worker that has something to collect asks which workers live
        others = set(await self._own_ledger.living_workers()) - {worker.name}
        for job in waiting:
            if job.worker in others:
                continue
            if job.host == worker.host:
                self._running[job.job_id] = asyncio.create_task(self._collect(job))
            else:
                await self._ledger.give_up_changes(job.job_id, "The host of its files is lost.")

    async def _collect(self, job: Uncollected) -> None:
        try:
            async with self._collections.slots:
                await self._attach(job)
        except JobFailure as error:  # Redis, or the engine: the next look repeats it
            log.warning("changes not collected yet", job=job.job_id, error=str(error))
        except Exception:
            log.exception("changes not collected yet", job=job.job_id)
        finally:
            self._running.pop(job.job_id)

    async def _attach(self, job: Uncollected) -> None:
        try:
            changes = await self._collections.store(self._provider.collect_changes(job.job_id))
            done = await self._ledger.attach_changes(job.job_id, changes)
            log.info("changes collected", job=job.job_id, attached=done)
        except JobFailure as failure:
            if failure.retryable and job.ended_seconds < LOST_SECONDS:
                raise
            await self._ledger.give_up_changes(job.job_id, str(failure))
            log.warning("changes lost", job=job.job_id, error=str(failure))
        await self._provider.discard(job.job_id)
