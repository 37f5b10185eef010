"""Cancellation of asyncio tasks."""

from __future__ import annotations

import asyncio
from typing import Any

CANCEL_AGAIN_SECONDS = 0.2
"""Before Python 3.12 `asyncio.wait_for` loses a cancellation that arrives together with its result,
so the cancellation is repeated."""


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks until all of them are done, and discard their results and exceptions.

    Raises:
        asyncio.CancelledError: The caller itself was cancelled; some tasks may still be running.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCEL_AGAIN_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)
