"""How scripts stand, as their workers have summarised it: nobody reads a whole journal for it."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis

from .keys import Keys
from .lua_scripts import Scripts
from .redis_errors import redis_failures


class ScriptSummaries:
    """The summaries of one installation, which are deleted with their jobs.

    Every method raises LedgerUnavailable when Redis does not respond.

    Args:
        redis: The client.
        keys: The key names.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._run = Scripts(redis, keys, ("summarise_script",)).run

    async def write(self, job_id: str, token: int, summary: str) -> None:
        """Replace a script's summary, unless another attempt holds its job.

        Args:
            job_id: The script's job.
            token: That of its attempt.
            summary: A `ScriptProgress` as JSON.
        """
        await self._run("summarise_script", job_id, token, summary)

    async def read(self, job_id: str) -> str | None:
        """Return a script's summary; None: it has none yet."""
        with redis_failures():
            found: Any = await self._redis.get(self._keys.script_summary(job_id))
        return None if found is None else str(found)
