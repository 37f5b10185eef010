"""The threads for calls that block, and which of them hang in a call of the system.

A call of the system may never return: a file of a host that is away, a device, a pipe. Its thread
cannot be ended, so each such call takes one thread from all jobs, until nothing runs any more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog

Result = TypeVar("Result")

THREADS = 32
"""As many as asyncio has at most: they are started when they are needed."""


@dataclass(eq=False)
class _Call:
    """A call that runs."""

    job: str | None
    """The job whose task has made it; None for a worker's own."""
    thread: int
    """Its id for the kernel."""
    switches: str = ""
    """How often the kernel has run its thread, as it was at `seen_at`."""
    seen_at: float = 0.0


class CallThreads(ThreadPoolExecutor):
    """The executor of a worker's loop: it knows what its threads do.

    Args:
        threads: How many there are at most.
        hangs_after_seconds: How long a thread makes no step until it counts as hanging: not even a
            slow disk or network lets a thread sleep for so long without waking it once.
    """

    def __init__(self, hangs_after_seconds: float, threads: int = THREADS) -> None:
        super().__init__(threads, "call")
        self.threads = threads
        self._hangs_after_seconds = hangs_after_seconds
        self._calls: set[_Call] = set()
        self._lock = threading.Lock()

    def submit(self, call: Callable[..., Result], /, *args: Any, **options: Any) -> Future[Result]:
        """Run a call in a thread; see `Executor.submit`."""
        job = structlog.contextvars.get_contextvars().get("job")
        return super().submit(self._run, job, call, args, options)

    def hanging(self) -> tuple[str | None, ...]:
        """Return the jobs of the calls that hang, each call's: a thread that did not make a step.

        It finds them when it is called from time to time, in one thread only.
        """
        now, hanging = time.monotonic(), []
        with self._lock:
            calls = [*self._calls]
        for call in calls:
            switches = _switches(call.thread)
            if switches != call.switches or not switches:
                call.switches, call.seen_at = switches, now
            elif now - call.seen_at >= self._hangs_after_seconds:
                hanging.append(call.job)
        return tuple(hanging)

    def _run(
        self,
        job: str | None,
        call: Callable[..., Result],
        args: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Result:
        running = _Call(job, threading.get_native_id())
        with self._lock:
            self._calls.add(running)
        try:
            return call(*args, **options)
        finally:
            with self._lock:
                self._calls.discard(running)


def _switches(thread: int) -> str:
    """Return how often the kernel has run a thread of this process; empty if it does not say so."""
    with suppress(OSError):
        lines = Path(f"/proc/self/task/{thread}/status").read_text("utf-8").splitlines()
        return " ".join(line for line in lines if "ctxt_switches" in line)
    return ""
