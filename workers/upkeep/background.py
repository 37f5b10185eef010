"""Background work that goes on whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

log = structlog.get_logger(__name__)

RESTART_SECONDS = 1.0
"""The pause before background work that failed is started again."""


async def run_forever(work: Callable[[], Awaitable[None]]) -> None:
    """Run background work for ever; an exception is logged, and the work is started again."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("background work failed and is restarted", work=work.__qualname__)
        await asyncio.sleep(RESTART_SECONDS)
