"""The number of jobs in each state, cached for a second."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ..jobs.state import JobState
from ..jobs.store.memory import RedisMemory
from .job_reader import JobReader

T = TypeVar("T")

FRESH_SECONDS = 1.0
"""The time for which counts are reused: several scrapers ask at once."""
RECOUNT_SECONDS = 60.0
"""The time between two complete recounts, where a process of an earlier release submits or deletes
jobs."""
MAX_EXPLAINED = 500
"""The most queued jobs whose reasons are determined, the newest: at 20 µs each a hundredth of a
second."""
REASONS = {
    "the worker that it was sent to": "sent",
    "a worker": "no worker",
    "a fit worker": "no fit worker",
    "another host": "no fit worker",
    "model ": "model not open",
    "a newer worker": "no worker",
    "an older worker": "no worker",
    "its tenant's limit": "tenant limit",
    "its agent's limit": "agent limit",
    "its tree's limit": "tree limit",
    "a free slot": "no free slot",
    "memory in Redis": "no memory in redis",
    "its turn": "its turn",
    "the end of": "other jobs",
}
"""Beginnings of `JobRecord.waiting_for` -> a name without numbers and names of jobs."""


@dataclass(frozen=True)
class Counts:
    """The counts of one moment."""

    states: Mapping[str, int] = field(default_factory=dict)
    queued: Mapping[str, int] = field(default_factory=dict)
    """The reasons why the newest queued jobs wait."""
    approvals: int = 0
    memory: RedisMemory | None = None
    """The memory of Redis."""


class Recent(Generic[T]):
    """Something that is read again when it is more than a second old.

    Args:
        read: Reads it.
    """

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._found: tuple[float, T] | None = None
        self._lock = asyncio.Lock()

    async def now(self) -> T:
        """Return it, at most a second old; what `read` raises is raised."""
        async with self._lock:
            if self._found is None or time.monotonic() - self._found[0] > FRESH_SECONDS:
                found = await self._read()
                self._found = time.monotonic(), found
            return self._found[1]


class JobCounts:
    """Counts jobs in a time that does not depend on how many there are.

    Args:
        reader: The connection.
    """

    def __init__(self, reader: JobReader) -> None:
        self._reader = reader
        self._recounted_at = float("-inf")
        self._recent = Recent(self._count)

    async def now(self) -> Counts:
        """Return the counts, at most a second old.

        Raises:
            LedgerUnavailable: Redis does not respond.
        """
        return await self._recent.now()

    async def _count(self) -> Counts:
        states = await self._states()
        queued = Counter[str]()
        if states.get(JobState.QUEUED):
            waiting = await self._reader.newest_queued(MAX_EXPLAINED)
            queued = Counter(_reason(one.waiting_for or "") for one in waiting)
        return Counts(
            states=states,
            queued=queued,
            approvals=await self._reader.approvals_count(),
            memory=await self._reader.memory(),
        )

    async def _states(self) -> Mapping[str, int]:
        found = await self._reader.state_counts()
        is_due = time.monotonic() - self._recounted_at > RECOUNT_SECONDS
        if not found.is_consistent and is_due:
            found = await self._reader.state_counts(begin_again=True)
            self._recounted_at = time.monotonic()
        return found.states


def _reason(waiting_for: str) -> str:
    found = (name for start, name in REASONS.items() if waiting_for.startswith(start))
    return next(found, "other")
