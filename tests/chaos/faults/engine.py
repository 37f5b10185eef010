"""Faults of the Docker engine."""

from __future__ import annotations

import asyncio
import signal

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
        if self._place.engine is None:
            return
        try:
            await self._place.engine.start()
        finally:
            _busy.release()


class EngineStopped(EngineKilled):
    """The daemon hangs; what is asked of it is answered much later."""

    async def inject(self) -> Hit | None:
        if self._place.engine is None:
            return None
        await _busy.acquire()
        self._place.engine.send(signal.SIGSTOP)
        return Hit(everybody=True)

    async def heal(self) -> None:
        if self._place.engine is not None:
            self._place.engine.send(signal.SIGCONT)
            _busy.release()


class EngineStaysAway(EngineKilled):
    """kill -9 of the daemon, which comes back after more time than a job's attempts take."""
