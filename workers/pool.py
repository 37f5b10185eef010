"""The worker's pool: threads that wait, and one asyncio loop that runs all agents.

A Celery task is a blocking call, an agent is a coroutine that waits for models most of the time. So
each task occupies a thread that only waits, and all agents of the process share one loop: hundreds
of them fit where prefork fits a handful, and clients that belong to a loop can be shared.

The pool also supports what Celery's thread pool does not: `revoke(terminate=True)`, which is
Flower's Terminate button, cancels the coroutine of the task; and its size can be changed while it
runs (`control pool_grow`, `--autoscale`).
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, TypeVar

from celery.concurrency.base import apply_target
from celery.concurrency.thread import ApplyResult
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.exceptions import Ignore

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


class PoolTask:
    """One task in the pool; it can be terminated before and while its coroutine runs."""

    def __init__(self) -> None:
        self.terminated = False
        self._future: Future[Any] | None = None
        self._lock = threading.Lock()

    def terminate(self) -> None:
        """Cancel the coroutine, or prevent that one is started."""
        with self._lock:
            self.terminated = True
            if self._future is not None:
                self._future.cancel()

    def run(self, loop: AgentLoop, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop and return its result; blocks the calling thread.

        Args:
            loop: Runs the coroutine.
            work: The coroutine.

        Raises:
            Ignore: The task was terminated; Celery has reported that already.
            Exception: Whatever the coroutine raises.
        """
        with self._lock:
            if self.terminated:
                work.close()
                raise Ignore
            future = asyncio.run_coroutine_threadsafe(work, loop.loop)
            self._future = future
        try:
            return future.result()
        except (CancelledError, asyncio.CancelledError):
            raise Ignore from None


_current = threading.local()


def run_on_loop(loop: AgentLoop, work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine for the Celery task of this thread, so that terminating the task cancels it.

    Args:
        loop: Runs the coroutine.
        work: The coroutine.

    Raises:
        Ignore: The task was terminated; Celery has reported that already.
        Exception: Whatever the coroutine raises.
    """
    task: PoolTask | None = getattr(_current, "task", None)
    return loop.run(work) if task is None else task.run(loop, work)


class _TerminableResult(ApplyResult):  # type: ignore[misc] # Celery ships no types
    """Celery's handle of a task in the pool."""

    def __init__(self, future: Future[Any], task: PoolTask) -> None:
        super().__init__(future)
        self._task = task

    def terminate(self, signal: Any = None) -> None:  # noqa: ARG002 - Celery's signature
        self._task.terminate()


class _Slots:
    """A number of slots that can change while they are in use; those in use are not taken away."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._used = 0
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        """Wait for a slot and take it."""
        with self._changed:
            self._changed.wait_for(lambda: self._used < self._number)
            self._used += 1

    def __exit__(self, *_: object) -> None:
        """Give the slot back."""
        with self._changed:
            self._used -= 1
            self._changed.notify()

    def resize(self, number: int) -> None:
        """Change the number of slots."""
        with self._changed:
            self._number = number
            self._changed.notify_all()


class TaskPool(ThreadPool):  # type: ignore[misc] # Celery ships no types
    """Celery's thread pool, with tasks that can be terminated and a size that can be changed."""

    task_join_will_block = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Its threads are made when they are needed: the slots bound the tasks at once, not it.
        self.executor = ThreadPoolExecutor(MAX_CONCURRENCY)
        self._slots = _Slots(self.limit)
        self._numbers = itertools.count(1)
        self._tasks: dict[int, PoolTask] = {}

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        callback: Callable[..., Any] | None = None,
        accept_callback: Callable[..., Any] | None = None,
        **_: Any,
    ) -> ApplyResult:
        """Run a task in one of the threads.

        Its number is passed to Celery instead of a process id. The arguments are Celery's.
        """
        number = next(self._numbers)
        task = self._tasks[number] = PoolTask()

        def run() -> None:
            _current.task = task
            try:
                with self._slots:
                    traced()
            finally:
                _current.task = None
                self._tasks.pop(number, None)

        def traced() -> None:
            # Also if it was terminated before it started: Celery frees its slot when it is
            # accepted, and `run_on_loop` runs nothing of it.
            apply_target(
                target, args, kwargs, unless_terminated(callback), accept_callback, pid=number
            )

        def unless_terminated(report: Callable[..., Any] | None) -> Callable[..., Any]:
            # Celery has reported a terminated task as revoked; a second outcome would contradict
            # it.
            return lambda result: None if task.terminated or report is None else report(result)

        return _TerminableResult(self.executor.submit(run), task)

    def terminate_job(self, pid: int, signal: Any = None) -> None:  # noqa: ARG002 - Celery's signature
        """Terminate a task.

        Args:
            pid: The task's number.
            signal: Ignored.
        """
        task = self._tasks.get(pid)
        if task is not None:
            task.terminate()

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
        self._slots.resize(limit)
