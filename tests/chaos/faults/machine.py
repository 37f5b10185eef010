"""Faults of the machine: its disk, its clock."""

from __future__ import annotations

import asyncio
import signal

from tests.chaos.faults.base import Fault, Hit
from tests.chaos.workers import faketime_library

CLOCKS = ("+1h", "-1h", "+40d", "-40d", "+0 x1.5", "+0 x0.5")
"""As libfaketime spells them: an offset, or a rate."""


class DiskFull(Fault):
    """No byte is left where the blobs are."""

    async def inject(self) -> Hit | None:
        if self._place.disk is None:
            return None
        await asyncio.to_thread(self._place.disk.fill)
        return Hit()

    async def heal(self) -> None:
        if self._place.disk is not None:
            await asyncio.to_thread(self._place.disk.free)


class WrongClock(Fault):
    """A worker starts again with a wrong time of day, and later once more with the right one."""

    async def inject(self) -> Hit | None:
        if faketime_library() is None:
            return None
        worker = self._worker()
        worker.clock = CLOCKS[self._target % len(CLOCKS)]
        worker.send(signal.SIGTERM)
        return Hit(workers=[worker.name])

    async def heal(self) -> None:
        worker = self._worker()
        worker.clock = None
        worker.send(signal.SIGTERM)
