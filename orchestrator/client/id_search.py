"""Finds the ids of jobs by their beginnings and ends, without reading the others."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from ..jobs.store.keys import Keys
from ..jobs.store.redis_errors import redis_failures

BEHIND_IDS = "\x7f"
"""A character that sorts after every character of an id."""
SCORED_CHARACTERS = 7
"""The characters of an id's end in its score: a score of Redis has 53 exact bits, and a character
takes seven."""
SAME_END = 1_000
"""The most ids with one score that are read at once; where there are more, Redis compares them
instead."""
SCANNED_AT_ONCE = 1_000
"""The ids that one command compares with a pattern: Redis takes a millisecond."""


class IdSearch:
    """Searches the indexes of ids that `enqueue` in common.lua maintains.

    Every method raises LedgerUnavailable when Redis does not respond.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    async def find_by_beginning(self, prefix: str, most: int) -> list[str]:
        """Return the ids of jobs with this beginning, in any order; some beyond `most`."""
        ids, behind = self._keys.ids, f"({prefix}{BEHIND_IDS}"
        search = methodcaller("zrangebylex", ids, f"[{prefix}", behind, 0, most + 1)
        found = await self._indexed(ids, search)
        return await self._scanned(f"{prefix}*", most) if found is None else found

    async def find_by_ending(self, end: str, most: int) -> list[str]:
        """Return the ids of jobs with this end, in any order; some beyond `most`."""
        ids, (first, behind) = self._keys.ids_by_end, end_scores(end)
        enough = most + 1 if len(end) <= SCORED_CHARACTERS else SAME_END
        search = methodcaller("zrangebyscore", ids, first, f"({behind}", 0, enough)
        found = await self._indexed(ids, search)
        if found is None or (len(end) > SCORED_CHARACTERS and len(found) == enough):
            return await self._scanned(f"*{end}", most)
        return [job_id for job_id in found if job_id.endswith(end)]

    async def _indexed(self, index: str, search: Callable[[Pipeline], object]) -> list[str] | None:
        """Return what a search in an index of ids finds.

        None when the index lacks jobs: they were submitted before there was one.
        """
        with redis_failures():
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.zcard(self._keys.index)
                pipe.zcard(index)
                search(pipe)
                jobs, indexed, found = await pipe.execute()
        return list(found) if indexed == jobs else None

    async def _scanned(self, pattern: str, most: int) -> list[str]:
        """Return the ids of jobs that match a pattern of Redis, in any order; some beyond `most`.

        Redis compares all, in steps, so that no other command waits for long.
        """
        found: dict[str, None] = {}
        cursor = None
        while cursor != 0 and len(found) <= most:
            with redis_failures():
                page: Any = await self._redis.zscan(
                    self._keys.index, cursor or 0, match=pattern, count=SCANNED_AT_ONCE
                )
            cursor = int(page[0])
            found |= dict.fromkeys(job_id for job_id, _ in page[1])
        return list(found)


def end_scores(end: str) -> tuple[int, int]:
    """Return the first score of ids with this end, and the first score after them.

    They are those of `end_score` in common.lua, for the last `SCORED_CHARACTERS` of the end.
    """
    last = end[-SCORED_CHARACTERS:][::-1]
    number = sum(ord(character) * 128**at for at, character in enumerate(reversed(last)))
    step = 128 ** (SCORED_CHARACTERS - len(last))
    return number * step, (number + 1) * step
