"""Faults of Redis."""

from __future__ import annotations

import asyncio

from tests.chaos.faults.base import Fault, Hit

_busy = asyncio.Lock()
"""It is killed once at a time."""


class RedisKilled(Fault):
    """kill -9; it comes back with its append-only file."""

    async def inject(self) -> Hit | None:
        await _busy.acquire()
        await asyncio.to_thread(self._place.redis.kill)
        return Hit(everybody=True)

    async def heal(self) -> None:
        try:
            await asyncio.to_thread(self._place.redis.start)
        finally:
            _busy.release()
