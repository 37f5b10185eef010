"""Who may start jobs from which snapshot.

The id of a snapshot is the hash of its content, so nobody can guess one. But ids are copied into
logs and chats, and a caller who knows a content could otherwise find out whether it is stored.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from redis.asyncio import Redis

from .keys import Keys
from .redis_errors import redis_failures

MAX_REMEMBERED = 10_000
"""The most snapshots of one owner, the newest ones; each takes some 100 bytes."""
REMEMBERED_SECONDS = 90 * 24 * 3600
"""The time after the owner's last snapshot: longer than unused snapshots are kept."""


class SnapshotOwners:
    """The snapshots that each owner has stored.

    Every method raises LedgerUnavailable when Redis does not respond.

    Args:
        redis: The client.
        keys: The key names.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    async def add(self, owner_key: str, snapshots: Collection[str]) -> None:
        """Remember snapshots of an owner.

        Args:
            owner_key: The owner, as `stored.owner_key` returns it.
            snapshots: Their ids.
        """
        if not snapshots:
            return
        key = self._keys.uploads(owner_key)
        with redis_failures():
            async with self._redis.pipeline() as pipe:
                pipe.zadd(key, dict.fromkeys(snapshots, time.time()))
                pipe.zremrangebyrank(key, 0, -MAX_REMEMBERED - 1)
                pipe.expire(key, REMEMBERED_SECONDS)
                await pipe.execute()

    async def missing(self, owner_key: str, snapshots: Collection[str]) -> set[str]:
        """Return those snapshots that are not the owner's."""
        if not snapshots:
            return set()
        wanted = sorted(snapshots)
        with redis_failures():
            scores = await self._redis.zmscore(self._keys.uploads(owner_key), wanted)
        return {one for one, score in zip(wanted, scores, strict=True) if score is None}
