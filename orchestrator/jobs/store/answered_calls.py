"""Which jobs have answered the calls of scripts, so that later scripts can use their results.

A call is known by a digest of all that its job was given. What is remembered of a job is deleted
with the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from .keys import Keys
from .lua_scripts import Scripts
from .redis_errors import redis_failures

READ_AT_ONCE = 500
"""The most calls of one request: each takes Redis a microsecond."""


class AnsweredCalls:
    """The answered calls of one installation.

    Every method raises LedgerUnavailable when Redis does not respond.

    Args:
        redis: The client.
        keys: The key names.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._run = Scripts(redis, keys, ("remember_answer",)).run

    async def remember(self, call: str, job_id: str) -> None:
        """Remember a job as the newest one that has answered a call, if it has succeeded.

        Args:
            call: The call's digest.
            job_id: The job.
        """
        await self._run("remember_answer", call, job_id)

    async def find(self, calls: Sequence[str]) -> list[str | None]:
        """Return the job that has answered each call; None: there is none."""
        found: list[Any] = []
        for first in range(0, len(calls), READ_AT_ONCE):
            keys = map(self._keys.answered_call, calls[first : first + READ_AT_ONCE])
            with redis_failures():
                found += await self._redis.mget(keys)
        return found
