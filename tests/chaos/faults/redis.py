"""Faults of Redis."""

from __future__ import annotations

import asyncio
import signal

from redis import Redis

from tests.chaos.faults.base import Fault, Hit

FULL_SHARE = 0.5
"""Its limit when it is full, of the memory that it has in use: it stays full although jobs end."""

_busy = asyncio.Lock()
"""One of these faults happens to it at a time."""


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


class RedisHangs(RedisKilled):
    """SIGSTOP for longer than a lease, as during a failover; then it continues where it was."""

    async def inject(self) -> Hit | None:
        await _busy.acquire()
        self._place.redis.send(signal.SIGSTOP)
        return Hit(everybody=True)

    async def heal(self) -> None:
        self._place.redis.send(signal.SIGCONT)
        _busy.release()


class RedisFull(RedisKilled):
    """Its memory is used up; later there is room again."""

    async def inject(self) -> Hit | None:
        await _busy.acquire()
        await asyncio.to_thread(self._limit, FULL_SHARE)
        return Hit(everybody=True)

    async def heal(self) -> None:
        try:
            await asyncio.to_thread(self._limit, 0)
        finally:
            _busy.release()

    def _limit(self, share: float) -> None:
        """Limit its memory to a share of what it has in use; 0 is no limit."""
        with Redis.from_url(self._place.redis.url) as redis:
            used = int(redis.info("memory")["used_memory"])
            redis.config_set("maxmemory", int(used * share))
