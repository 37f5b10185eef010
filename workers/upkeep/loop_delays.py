"""How late the worker's loop runs what is due: while one step runs, every other one waits."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Mapping
from itertools import accumulate

BOUNDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0)
"""The histogram's bounds in seconds: a healthy loop stays below 0.05, the watchdog reports 1."""
TICK_SECONDS = 0.02
"""The time between two looks at the clock: a shorter block is missed or seems shorter, and fifty
looks a second take a thousandth of the processor."""
IDLE_TICK_SECONDS = 0.5
"""The same while no job runs."""


class LoopDelays:
    """The histogram of a loop's delays since the start.

    Args:
        is_busy: Returns whether the loop has work whose delay matters.
    """

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        self._is_busy = is_busy
        self._counts = [0] * (len(BOUNDS) + 1)
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
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._sum += seconds

    def histogram(self) -> Mapping[str, float]:
        """Return how many delays were at most how many seconds long, and the `sum` of all."""
        bounds = (*map(str, BOUNDS), "+Inf")
        up_to = dict(zip(bounds, accumulate(self._counts), strict=True))
        return {**up_to, "sum": round(self._sum, 3)}
