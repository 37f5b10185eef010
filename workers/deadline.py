"""A job's deadline: made once per attempt, passed down, never recomputed from limits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Self

from orchestrator.jobs.failures import DeadlineExceeded
from orchestrator.jobs.spec import Limits
from workers.heartbeat import elapsed_clock


class Deadline:
    """A point in time on this machine's clock."""

    def __init__(self, seconds: float, *, limit_seconds: float) -> None:
        self._at = elapsed_clock() + seconds
        self._limit_seconds = limit_seconds

    @classmethod
    def of(cls, limits: Limits, *, ran_seconds: float) -> Self:
        """The deadline of an attempt, after what earlier ones ran."""
        total = limits.timeout_seconds
        if total is None:
            raise ValueError("the limits are not filled: timeout_seconds is not set")
        return cls(total - ran_seconds, limit_seconds=total)

    @property
    def remaining_seconds(self) -> float:
        """How long until then; negative afterwards."""
        return self._at - elapsed_clock()

    @contextlib.asynccontextmanager
    async def enforced(self) -> AsyncIterator[None]:
        """Cancel the body when the time is over.

        Raises:
            DeadlineExceeded: it was.
        """
        try:
            async with asyncio.timeout(max(self.remaining_seconds, 0)) as scope:
                yield
        except TimeoutError:
            if not scope.expired():
                raise  # somebody else's timeout
            raise DeadlineExceeded(
                f"The job's {self._limit_seconds:g} seconds are used up; limits.timeout_seconds gives more.",
            ) from None
