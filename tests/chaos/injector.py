"""Injects the planned faults at their times and heals them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.faults import find_fault
from tests.chaos.faults.base import Hit
from tests.chaos.installation import Installation
from tests.chaos.plan import PlannedFault


@dataclass
class Injected:
    """A fault that happened."""

    kind: str
    at: float
    """Seconds since the epoch, as the journal has them."""
    hit: Hit
    healed_at: float = 0.0


class Injector:
    """Runs a plan of faults."""

    def __init__(self, place: Installation, faults: Sequence[PlannedFault]) -> None:
        self._place = place
        self._faults = faults
        self.injected: list[Injected] = []
        self.skipped = 0

    async def run(self) -> None:
        """Inject all of them; when this returns, all are healed."""
        start = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for planned in self._faults:
                await asyncio.sleep(max(0.0, start + planned.at - time.monotonic()))
                group.create_task(self._one(planned))

    async def _one(self, planned: PlannedFault) -> None:
        fault = find_fault(planned, self._place)
        at = time.time()
        hit = await fault.inject()
        if hit is None:
            self.skipped += 1
            return
        injected = Injected(planned.kind, at, hit)
        self.injected.append(injected)
        try:
            await asyncio.sleep(planned.seconds)
        finally:
            await fault.heal()
            injected.healed_at = time.time()
