"""Retries during a short outage of Redis: a restart or a failover does not end a job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fanout.orchestrator.jobs.failures import LedgerFull, LedgerUnavailable

OUTAGE_SECONDS = 30.0
"""A restart that loads the append-only file, or a failover by Sentinel, takes less."""
PAUSE_SECONDS = 0.5
"""Between two attempts, so that a restarted Redis is not overloaded."""

Answer = TypeVar("Answer")


async def through_outage(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Repeat an operation while Redis is unavailable, and return its result.

    While Redis is full it is repeated without end: a person has to make room, and until then the
    caller keeps what it could not store. A job's own time limit still ends its wait.

    Args:
        ask: The operation; it must be safe to repeat.

    Raises:
        LedgerUnavailable: Redis has not responded for `OUTAGE_SECONDS`.
        LedgerMisconfigured: Redis refuses; it would do so again.
    """
    deadline = time.monotonic() + OUTAGE_SECONDS
    while True:
        try:
            return await ask()
        except LedgerUnavailable as failure:
            is_full = isinstance(failure, LedgerFull)
            if not failure.retryable or (time.monotonic() > deadline and not is_full):
                raise
        await asyncio.sleep(PAUSE_SECONDS)
