"""Everything at once."""

from __future__ import annotations

import signal

from tests.chaos.faults.base import Fault, Hit
from tests.chaos.faults.engine import EngineKilled
from tests.chaos.faults.redis import RedisKilled
from tests.chaos.installation import Installation


class PowerFailure(Fault):
    """kill -9 of all workers, of the engine and of Redis; they come back one after the other."""

    def __init__(self, place: Installation, target: int) -> None:
        super().__init__(place, target)
        self._parts = (RedisKilled(place, target), EngineKilled(place, target))

    async def inject(self) -> Hit | None:
        for worker in self._place.workers:
            worker.send(signal.SIGKILL)
        for part in self._parts:
            await part.inject()
        return Hit(everybody=True)

    async def heal(self) -> None:
        for part in self._parts:
            await part.heal()
