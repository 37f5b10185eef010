"""Waiting through a short outage of Redis.

A restart or a failover is no reason to give up on a job.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from orchestrator.jobs.failures import LedgerUnavailable

OUTAGE_SECONDS = 30.0
"""A restart that loads its append-only file, or a failover by Sentinel, is over by then."""
PAUSE_SECONDS = 0.5
"""Between two tries: a Redis that comes back is not met by a storm."""

Answer = TypeVar("Answer")


async def through_outage(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Ask what may be asked twice, again and again while Redis is away.

    Raises:
        LedgerUnavailable: Redis has not answered for `OUTAGE_SECONDS`.
    """
    deadline = time.monotonic() + OUTAGE_SECONDS
    while True:
        try:
            return await ask()
        except LedgerUnavailable:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(PAUSE_SECONDS)
