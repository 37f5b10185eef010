"""The Lua scripts in the folder `scripts`, and how they are run."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any

from redis.asyncio import Redis

from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.redis_errors import redis_failures


class Scripts:
    """Scripts of one Redis, by name.

    Args:
        redis: The client.
        keys: The key names; their prefix is the first argument of each script.
        names: The scripts.
        shared: Parts that these scripts have in common, besides what all scripts have.
    """

    def __init__(
        self, redis: Redis, keys: Keys, names: Iterable[str], shared: tuple[str, ...] = ()
    ) -> None:
        self._prefix = keys.prefix
        self.registered: dict[str, Any] = {
            name: redis.register_script(script_source(name, shared)) for name in names
        }

    async def run(self, name: str, *arguments: str | float) -> Any:
        """Run a script and return its answer.

        Raises:
            LedgerUnavailable: Redis does not respond.
        """
        with redis_failures():
            return await self.registered[name](keys=[], args=[self._prefix, *arguments])


@cache
def script_source(name: str, shared: tuple[str, ...] = ()) -> str:
    """Return a script with the common beginning of all scripts, and other shared parts."""
    folder = resources.files("fanout.orchestrator.jobs.store") / "scripts"
    parts = ("common", "endings", *shared, name)
    return "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in parts)


def milliseconds(seconds: float) -> int:
    """Return a time as scripts take it."""
    return round(seconds * 1000)
