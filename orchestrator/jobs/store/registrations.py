"""Reads the registrations of living workers, in bounded steps; nothing else reads them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

from redis.asyncio import Redis

from ..worker_info import Worker, read_worker
from .connection import server_time_ms
from .keys import Keys
from .redis_errors import redis_failures

REGISTRATIONS_AT_ONCE = 500
"""Registrations in one round trip: of short ones Redis takes two milliseconds."""


class Registrations:
    """The registrations of an installation's living workers.

    Every method raises LedgerUnavailable when Redis does not respond.

    Args:
        redis: The client.
        keys: The key names.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    async def names(self) -> list[str]:
        """Return the names of the living workers, sorted."""
        now = await server_time_ms(self._redis)
        with redis_failures():
            names: Any = await self._redis.zrangebyscore(self._keys.workers, now, "+inf")
        return sorted(map(str, names))

    async def read(
        self, kind: type[Worker], names: Sequence[str] | None = None
    ) -> AsyncGenerator[Worker, None]:
        """Yield workers, and only what is asked for is read of them.

        Args:
            kind: How much of a registration is wanted: with a thousand agents, a whole one is long.
            names: The names of workers, as `names` returned them; None: all living ones.
        """
        wanted = [field.name for field in fields(kind) if field.name != "name"]
        names = await self.names() if names is None else names
        for first in range(0, len(names), REGISTRATIONS_AT_ONCE):
            some = names[first : first + REGISTRATIONS_AT_ONCE]
            with redis_failures():
                async with self._redis.pipeline(transaction=False) as pipe:
                    for name in some:
                        pipe.hmget(self._keys.worker(name), wanted)
                    rows = await pipe.execute()
            for name, row in zip(some, rows, strict=True):
                named = zip(wanted, row, strict=True)
                stored = {field: value for field, value in named if value is not None}
                with suppress(ValueError):  # it has just ended, or its release is unknown
                    yield read_worker(kind, name, stored)
