"""The gate through which agents start: the loop has time for leases and for those that run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

STARTS_AT_ONCE = 8
"""Agents on their way to their first request: more would not be sooner there, because all share one
processor, and with a thousand no lease is renewed for twenty seconds."""
LONGEST_START_SECONDS = 2.0
"""After which an agent is not counted any more: it waits for something else, such as a command that
verifies what it merges."""


class AgentGate:
    """Lets a bounded number of a worker's agents start at once."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(STARTS_AT_ONCE)

    @contextlib.asynccontextmanager
    async def starting(self) -> AsyncIterator[Callable[[], None]]:
        """Wait for a slot. The function returns it, and so does the end of the context."""
        await self._slots.acquire()
        is_held = True

        def started() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._slots.release()

        late = asyncio.get_running_loop().call_later(LONGEST_START_SECONDS, started)
        try:
            yield started
        finally:
            late.cancel()
            started()
