"""Adds what this worker has counted to the totals of the installation, every few seconds."""

from __future__ import annotations

import asyncio
import time
from uuid import uuid4

import structlog

from fanout.orchestrator.jobs.failures import LedgerUnavailable
from fanout.orchestrator.jobs.store.fleet_totals import ADDED_AT_ONCE, FleetTotals
from fanout.orchestrator.jobs.totals import Label, Totals

log = structlog.get_logger(__name__)

STORE_SECONDS = 5.0
"""Between two additions of a worker that runs jobs: a third of the shortest usual interval of
Prometheus. What a killed worker counted since the last one is lost."""
IDLE_SECONDS = 60.0
"""The same when it has counted nothing but its loop's delays: thousands of idle workers cost Redis
little."""


class Counting:
    """Stores the totals of one worker.

    Args:
        stored: The totals of the installation.
        totals: Those of this worker.
        worker: The worker's name.
    """

    def __init__(self, stored: FleetTotals, totals: Totals, worker: str) -> None:
        self._stored = stored
        self._totals = totals
        self._worker = worker
        self._stored_at = time.monotonic()
        self._pending: list[tuple[str, dict[Label, float]]] = []
        """What was taken and is not stored, by the name of its addition: when an answer was lost,
        it is repeated under the same name."""

    async def run(self) -> None:
        """Store the totals until cancelled."""
        while True:
            await asyncio.sleep(STORE_SECONDS)
            is_due = time.monotonic() - self._stored_at >= IDLE_SECONDS
            if is_due or self._pending or not self._totals.is_idle:
                await self.store()

    async def store(self) -> None:
        """Store what was counted; while Redis does not answer, it is kept for the next time."""
        if not self._pending:
            taken = list(self._totals.take().items())
            self._pending = [
                (uuid4().hex, dict(taken[first : first + ADDED_AT_ONCE]))
                for first in range(0, len(taken), ADDED_AT_ONCE)
            ]
        try:
            while self._pending:
                await self._stored.add(self._worker, *self._pending[0])
                del self._pending[0]
        except LedgerUnavailable as error:
            log.warning("totals not stored", error=str(error))
        self._stored_at = time.monotonic()
