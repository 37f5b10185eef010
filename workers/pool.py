"""The worker's pool: one asyncio loop that runs all agents, and a greenlet for each Celery task.

A Celery task is a blocking call, an agent is a coroutine that waits for models most of the time. So
all agents of a process share one loop: hundreds of them fit where prefork fits a handful, and
clients that belong to a loop can be shared. What Celery does around a task runs in the loop's
thread, too, in a greenlet that sleeps while the coroutine runs: a thread for each would take three
times the memory, and the interpreter's lock from the loop.

Its size can be changed while it runs (`control pool_grow`, `--autoscale`). It ends no task: a job
is cancelled, and given back, through the ledger, which then knows whether it is to run again.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from functools import cache, partial
from typing import Any, TypeVar

import structlog
from celery.concurrency.base import BasePool, apply_target
from celery.exceptions import Ignore
from greenlet import getcurrent, greenlet

log = structlog.get_logger(__name__)

Result = TypeVar("Result")

MAX_CONCURRENCY = 1000
"""The most tasks at once, as in FANOUT_WORKER__CONCURRENCY: one loop has no time for more."""


class AgentLoop:
    """The one asyncio loop of a worker process, in its own thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self.loop.run_forever, name="agent-loop", daemon=True
        )
        self._thread.start()

    @property
    def thread_id(self) -> int:
        """The thread's id, as `sys` uses it; 0 before it has started."""
        return self._thread.ident or 0

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop and return its result; blocks the calling thread.

        Must not be called from the loop itself.

        Raises:
            Exception: Whatever the coroutine raises.
        """
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def stop(self) -> None:
        """Stop the loop and wait for its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=5)


@cache
def agent_loop() -> AgentLoop:
    """Return this process's loop, which is started when it is first used."""
    return AgentLoop()


class _Steps:
    """Functions that the loop runs, one in each of its rounds.

    When a thousand tasks end together, what Celery does at their ends would otherwise be one round
    of a third of a second.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], Any]] = deque()

    def add(self, step: Callable[[], Any]) -> None:
        """Run a function after those that wait; to be called on the loop."""
        self._waiting.append(step)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._run_first)

    def _run_first(self) -> None:
        try:
            self._waiting[0]()
        finally:
            self._waiting.popleft()
            if self._waiting:
                self._loop.call_soon(self._run_first)


class _TaskGreenlet(greenlet):
    """Runs what Celery does around one task.

    Args:
        loop: Runs it, and its coroutine.
        steps: Of all tasks, on the loop.
        run: What Celery does, which calls `run_coroutine`.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, steps: _Steps, run: Callable[[], None]
    ) -> None:
        super().__init__(run)
        self._loop = loop
        self._steps = steps

    def wait_for(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Let the loop go on until a coroutine has ended, and return its result."""
        assert self.parent is not None  # noqa: S101 - it is that of the loop
        running = self._loop.create_task(work)
        running.add_done_callback(lambda _: self._steps.add(self.switch))
        self.parent.switch()
        try:
            return running.result()
        except asyncio.CancelledError:
            raise Ignore from None
        finally:
            del running  # an error's traceback has this frame


def run_coroutine(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine for the Celery task that calls this, and return its result.

    Args:
        work: The coroutine.

    Raises:
        Ignore: Something that it called has cancelled it; the lease of its job lapses.
        Exception: Whatever the coroutine raises.
    """
    current = getcurrent()
    if not isinstance(current, _TaskGreenlet):
        work.close()
        raise TypeError("Only a task of this pool can wait for a coroutine.")
    return current.wait_for(work)


class TaskPool(BasePool):  # type: ignore[misc] # Celery ships no types
    """Celery's pool, on the agents' loop.

    Celery bounds the tasks that it sends here by the pool's size; more than that wait.
    """

    body_can_be_buffer = True
    signal_safe = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._agents = agent_loop()
        self._numbers = itertools.count(1)
        # The rest is used on the loop only.
        self._steps = _Steps(self._agents.loop)
        self._running = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        *,
        callback: Callable[..., Any],
        accept_callback: Callable[..., Any] | None = None,
        **_: Any,
    ) -> None:
        """Run a task; the arguments are Celery's.

        Its number is passed to Celery instead of a process id. It is accepted in this thread: that
        is a call of Redis, which the loop must not wait for.
        """
        number = next(self._numbers)
        run = partial(apply_target, target, args or (), kwargs or {}, callback)
        if accept_callback is not None:
            try:
                accept_callback(number, time.monotonic())
            except Exception as error:  # noqa: BLE001 - Celery would end the worker
                # Redis will deliver the message again; the ledger refuses a job that runs.
                log.warning("message not acknowledged", error=type(error).__name__)
        self._agents.loop.call_soon_threadsafe(self._start_or_queue, run)

    def on_stop(self) -> None:
        """Wait for the tasks that run; blocks. Those that wait are dropped."""
        self._agents.run(self._end())

    def grow(self, n: int = 1) -> None:
        """Run more tasks at once.

        Args:
            n: How many more.

        Raises:
            ValueError: They would be too many.
        """
        self._resize(self.limit + n)

    def shrink(self, n: int = 1) -> None:
        """Run fewer tasks at once; those that run go on.

        Args:
            n: How many fewer.

        Raises:
            ValueError: None would be left.
        """
        self._resize(self.limit - n)

    def _resize(self, limit: int) -> None:
        if not 1 <= limit <= MAX_CONCURRENCY:
            raise ValueError(f"A worker runs 1 to {MAX_CONCURRENCY} jobs at once, not {limit}.")
        self.limit = limit
        self._agents.loop.call_soon_threadsafe(self._start_waiting)

    def _start_or_queue(self, run: Callable[[], None]) -> None:
        self._waiting.append(run)
        self._start_waiting()

    def _start_waiting(self) -> None:
        while self._waiting and self._running < self.limit:
            run = self._waiting.popleft()
            self._running += 1
            self._idle.clear()
            self._steps.add(partial(self._begin, run))

    def _begin(self, run: Callable[[], None]) -> None:
        _TaskGreenlet(self._agents.loop, self._steps, partial(self._run, run)).switch()

    def _run(self, run: Callable[[], None]) -> None:
        try:
            run()
        finally:
            self._running -= 1
            self._start_waiting()
            if not self._running:
                self._idle.set()

    async def _end(self) -> None:
        self._waiting.clear()
        await self._idle.wait()
