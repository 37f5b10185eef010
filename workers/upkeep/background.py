"""Background work that is continued whatever happens, and requests to shut down.

A signal handler interrupts its thread anywhere, in another handler too, and must take no lock that
may be held there: neither the log's nor that of starting a thread. When a parent process ends, for
example, the kernel sends its child the same signal once for each thread of the parent. So handlers
only make requests, which a thread of its own carries out.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from queue import SimpleQueue

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


class ShutdownRequests:
    """Carries out the requests one after another.

    Args:
        carry_out: What a request is for.
    """

    def __init__(self, carry_out: Callable[[], None]) -> None:
        self._carry_out = carry_out
        self._requests: SimpleQueue[bool] = SimpleQueue()
        """Its `put` may interrupt itself. False ends the thread."""
        self._thread = threading.Thread(target=self._run, name="shutdown", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self) -> None:
        """Make a request, in a signal handler or any thread; returns at once."""
        self._requests.put(True)

    def end(self) -> None:
        """Return when all requests are carried out and the thread has ended."""
        self._requests.put(False)
        self._thread.join()

    def _run(self) -> None:
        while self._requests.get():
            self._carry_out()
