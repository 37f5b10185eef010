"""Announcements of changed jobs, for programs that watch many at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from redis.asyncio import Redis

from fanout.orchestrator.jobs.store.journal import RECONNECT_SECONDS
from fanout.orchestrator.jobs.store.keys import Keys

GATHERED_SECONDS = 0.03
"""The time in which announcements are collected: a person does not notice it, and a job with a
hundred steps a second is read thirty times."""


class Announcements:
    """The ids of jobs whose journals have new events, by one subscription."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._pattern = keys.journal_changed("*")

    async def __call__(self) -> AsyncIterator[set[str]]:
        """Yield the ids of jobs that have changed since the last time.

        An empty set means that some may have been missed, because the connection is new.
        """
        while True:
            try:
                async with self._redis.pubsub(ignore_subscribe_messages=True) as pubsub:
                    await pubsub.psubscribe(self._pattern)
                    yield set()
                    while True:
                        yield await self._next(pubsub)
            except Exception:  # noqa: BLE001 - a broken connection is replaced
                await asyncio.sleep(RECONNECT_SECONDS)

    async def _next(self, pubsub: Any) -> set[str]:
        loop = asyncio.get_running_loop()
        changed: set[str] = set()
        until = None
        while until is None or (left := until - loop.time()) > 0:
            message = await pubsub.get_message(timeout=1.0 if until is None else left)
            if message is not None:
                changed.add(str(message["data"]))
                until = until or loop.time() + GATHERED_SECONDS
        return changed
