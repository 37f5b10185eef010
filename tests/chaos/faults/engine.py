"""Faults of the Docker engine."""

from __future__ import annotations

import asyncio

from tests.chaos.faults.base import Fault, Hit

_busy = asyncio.Lock()
"""It is killed once at a time."""


class EngineKilled(Fault):
    """kill -9 of the daemon; when it comes back it ends all containers."""

    async def inject(self) -> Hit | None:
        if self._place.engine is None:
            return None
        await _busy.acquire()
        await self._place.engine.kill()
        return Hit(everybody=True)

    async def heal(self) -> None:
        try:
            if self._place.engine is not None:
                await self._place.engine.start()
        finally:
            _busy.release()
