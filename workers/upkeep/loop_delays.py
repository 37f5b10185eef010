"""How late the worker's loop runs what is due: while one step runs, every other one waits."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Mapping
from itertools import accumulate

from fanout.orchestrator.jobs.totals import DELAY_BOUNDS, LOOP_DELAYS, Totals

TICK_SECONDS = 0.02
"""The time between two looks at the clock: a shorter block is missed or seems shorter, and fifty
looks a second take a thousandth of the processor."""
IDLE_TICK_SECONDS = 0.5
"""The same while no job runs."""


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
