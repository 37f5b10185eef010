"""Retries during a short outage of Redis: a restart or a failover does not end a job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from orchestrator.jobs.failures import LedgerUnavailable

OUTAGE_SECONDS = 30.0
"""A restart that loads the append-only file, or a failover by Sentinel, takes less."""
PAUSE_SECONDS = 0.5
"""Between two attempts, so that a restarted Redis is not overloaded."""

Answer = TypeVar("Answer")


async def through_outage(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Repeat an operation while Redis is unavailable, and return its result.

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
            if not failure.retryable or time.monotonic() > deadline:
                raise
        await asyncio.sleep(PAUSE_SECONDS)
