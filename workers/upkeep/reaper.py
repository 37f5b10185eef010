"""The reaper: requeues jobs whose lease lapsed, and removes what ended jobs left behind.

Every worker runs one. In each interval the first to ask requeues and dispatches for all workers of
its release, whatever their number; should it die, another one is the first in the next interval.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

import structlog

from fanout.orchestrator.jobs.failures import JobFailure
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.admission import Admission
from fanout.orchestrator.jobs.store.ledger import Ledger

from ..attempt.traced import record_lost_attempt
from ..sandbox import SandboxProvider
from ..telemetry import flush_spans, is_exported
from .own_ledger import OwnLedger

log = structlog.get_logger(__name__)

ROUND = 0.9
"""The part of the interval for which one reaper acts for all: in the rest another one may come."""
LEFTOVERS_SECONDS = 5.0
"""How often containers and folders are checked: all are removed 30 s after their job's end."""
LEFTOVERS_PAUSE_SECONDS = 1.0
"""The shortest time between two checks, also when jobs end without their worker."""


class Reaper:
    """Requeues lapsed jobs, dispatches queued ones, and removes what ended jobs left behind.

    Args:
        ledger: Finds lapsed jobs.
        admission: Dispatches jobs for which there is room.
        provider: Removes containers and folders.
        own_ledger: Says which jobs may still use them.
        interval_seconds: The time between two checks for lapsed jobs.
    """

    def __init__(
        self,
        ledger: Ledger,
        admission: Admission,
        provider: SandboxProvider,
        own_ledger: OwnLedger,
        *,
        interval_seconds: float,
    ) -> None:
        self._ledger = ledger
        self._admission = admission
        self._provider = provider
        self._own_ledger = own_ledger
        self._interval_seconds = interval_seconds
        self._ended = asyncio.Event()
        """Set when a job ended without its worker: its sandbox may still exist and run."""

    async def run(self) -> None:
        """Reap until cancelled; failures are logged."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reap_jobs())
            group.create_task(self._reap_leftovers())

    async def _reap_jobs(self) -> None:
        while True:
            try:
                await self._reap_for_all()
            except JobFailure as error:
                log.warning("reaping jobs failed", error=str(error))
            await asyncio.sleep(self._interval_seconds)

    async def _reap_for_all(self) -> None:
        reaped = await self._ledger.reap(self._interval_seconds * ROUND)
        if reaped is None:
            return
        for job_id, state in reaped.states.items():
            log.warning("job reaped", job=job_id, state=state)
            if JobState(state).is_terminal:
                self._ended.set()
        if is_exported():
            await self._trace_lost_attempts(reaped.lost)
        await self._admission.pump()

    async def _trace_lost_attempts(self, lost: Mapping[str, float]) -> None:
        """Report the attempts that their workers cannot report."""
        for job_id, lost_at in lost.items():
            try:
                record_lost_attempt(await self._ledger.get(job_id), lost_at)
            except JobFailure as error:
                log.warning("lost attempt not traced", job=job_id, error=str(error))
        flush_spans()

    async def _reap_leftovers(self) -> None:
        while True:
            self._ended.clear()
            try:
                removed = await self._provider.reap(
                    self._own_ledger.is_live, self._own_ledger.awaits_collection
                )
                if removed:
                    log.info("leftovers removed", count=removed)
            except JobFailure as error:
                log.warning("reaping leftovers failed", error=str(error))
            await asyncio.sleep(LEFTOVERS_PAUSE_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEFTOVERS_SECONDS - LEFTOVERS_PAUSE_SECONDS):
                    await self._ended.wait()
