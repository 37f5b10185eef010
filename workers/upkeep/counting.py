"""What a worker counts for operators: every few seconds it is added to the installation's totals.

The delays of its loop are counted, too: while one step runs, every other one waits.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from itertools import accumulate
from uuid import uuid4

import structlog

from fanout.orchestrator.jobs.failures import LedgerUnavailable
from fanout.orchestrator.jobs.store.fleet_totals import ADDED_AT_ONCE, FleetTotals
from fanout.orchestrator.jobs.totals import DELAY_BOUNDS, LOOP_DELAYS, Label, Totals

TICK_SECONDS = 0.02
"""The time between two looks at the clock: a shorter block is missed or seems shorter, and fifty
looks a second take a thousandth of the processor."""
IDLE_TICK_SECONDS = 0.5
"""The same while no job runs."""
log = structlog.get_logger(__name__)

STORE_SECONDS = 5.0
"""Between two additions of a worker that runs jobs: a third of the shortest usual interval of
Prometheus. What a killed worker counted since the last one is lost."""
IDLE_SECONDS = 60.0
"""The same when it has counted nothing but its loop's delays: thousands of idle workers cost Redis
little."""


class LoopDelays:
    """The histogram of a loop's delays since the start.

    Args:
        is_busy: Returns whether the loop has work whose delay matters.
        totals: Where the delays are counted for the installation, too.
    """

    def __init__(self, is_busy: Callable[[], bool], totals: Totals) -> None:
        self._is_busy = is_busy
        self._totals = totals
        self._counts = [0] * (len(DELAY_BOUNDS) + 1)
        self._sum = 0.0

    async def run(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            pause = TICK_SECONDS if self._is_busy() else IDLE_TICK_SECONDS
            due = loop.time() + pause
            await asyncio.sleep(pause)
            self.add(max(loop.time() - due, 0.0))

    def add(self, seconds: float) -> None:
        """Count one delay."""
        self._counts[bisect_left(DELAY_BOUNDS, seconds)] += 1
        self._sum += seconds
        self._totals.observe(LOOP_DELAYS, seconds)

    def histogram(self) -> Mapping[str, float]:
        """Return how many delays were at most how many seconds long, and the `sum` of all."""
        bounds = (*map(str, DELAY_BOUNDS), "+Inf")
        up_to = dict(zip(bounds, accumulate(self._counts), strict=True))
        return {**up_to, "sum": round(self._sum, 3)}


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
