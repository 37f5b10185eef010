"""Retries during a short outage of Redis: a restart or a failover does not end a job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..failures import LedgerFull, LedgerUnavailable

OUTAGE_SECONDS = 30.0
"""A restart that loads the append-only file, or a failover by Sentinel, takes less."""
FULL_SECONDS = 15.0
"""The time for which a full Redis is tolerated. Early retention, which runs every ten seconds,
makes room by then. After that the caller gives up its sandbox and its slot, but what its job has
started continues."""
PAUSE_SECONDS = 0.5
"""Between two attempts, so that a restarted Redis is not overloaded."""

Answer = TypeVar("Answer")


async def through_outage(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Repeat an operation while Redis is unavailable, and return its result.

    Args:
        ask: The operation; it must be safe to repeat.

    Raises:
        LedgerUnavailable: Redis has not responded for `OUTAGE_SECONDS`.
        LedgerFull: Redis has had no memory left for `FULL_SECONDS`.
        LedgerMisconfigured: Redis refuses; it would do so again.
    """
    begun = time.monotonic()
    while True:
        try:
            return await ask()
        except LedgerUnavailable as failure:
            most = FULL_SECONDS if isinstance(failure, LedgerFull) else OUTAGE_SECONDS
            if not failure.retryable or time.monotonic() - begun > most:
                raise
        await asyncio.sleep(PAUSE_SECONDS)
