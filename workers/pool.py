"""The worker's pool: threads that wait, and one asyncio loop that works.

Celery knows tasks as blocking calls, agents are coroutines that wait for models most of their
lives. So each task occupies a thread that only waits, and all agents of the process share one loop:
hundreds of them fit where prefork fits a handful, and clients that belong to a loop stay with the
one they know.

The threads also give Celery what its own thread pool lacks: `revoke(terminate=True)`, which is
Flower's Terminate button, cancels the coroutine of the task.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from celery.concurrency.base import apply_target
from celery.concurrency.thread import ApplyResult
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.exceptions import Ignore

Result = TypeVar("Result")


class AgentLoop:
    """The one asyncio loop of a worker process, in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self.loop.run_forever, name="agent-loop", daemon=True
        )
        self._thread.start()

    @property
    def thread_id(self) -> int:
        """The thread's, as `sys` knows it."""
        return self._thread.ident or 0

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine to its end and wait for it; not from the loop itself."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def stop(self) -> None:
        """End the loop and its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=5)


class PooledTask:
    """One task in the pool; it can be terminated before and while its coroutine runs."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.terminated = False
        self._future: Future[Any] | None = None
        self._lock = threading.Lock()

    def terminate(self) -> None:
        """Cancel the coroutine, now or as soon as there is one."""
        with self._lock:
            self.terminated = True
            if self._future is not None:
                self._future.cancel()

    def wait_for(self, loop: AgentLoop, work: Coroutine[Any, Any, Result]) -> Result:
        """Run the coroutine on the loop and block until it ends.

        Raises:
            Ignore: the task was terminated; Celery has announced that already.
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


def wait_for(loop: AgentLoop, work: Coroutine[Any, Any, Result]) -> Result:
    """For a task's body: run a coroutine on the loop, so that terminating the task cancels it."""
    task: PooledTask | None = getattr(_current, "task", None)
    return loop.run(work) if task is None else task.wait_for(loop, work)


class _Terminable(ApplyResult):  # type: ignore[misc] # Celery ships no types
    """What Celery keeps of a task that it gave to the pool."""

    def __init__(self, future: Future[Any], task: PooledTask) -> None:
        super().__init__(future)
        self._task = task

    def terminate(self, signal: Any = None) -> None:  # noqa: ARG002 - Celery's signature
        self._task.terminate()


class TaskPool(ThreadPool):  # type: ignore[misc] # Celery ships no types
    """Celery's thread pool, with tasks that can be terminated."""

    task_join_will_block = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._numbers = itertools.count(1)
        self._tasks: dict[int, PooledTask] = {}

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        callback: Callable[..., Any] | None = None,
        accept_callback: Callable[..., Any] | None = None,
        **_: Any,
    ) -> ApplyResult:
        """Give a task to a waiting thread.

        Its number stands where other pools have a process id.
        """
        task = PooledTask(next(self._numbers))
        self._tasks[task.number] = task

        def run() -> None:
            _current.task = task
            try:
                # Also when it was terminated before it began: Celery frees its slot once it is
                # accepted, and `wait_for` runs nothing of it.
                apply_target(
                    target, args, kwargs, quiet(callback), accept_callback, pid=task.number
                )
            finally:
                _current.task = None
                self._tasks.pop(task.number, None)

        def quiet(report: Callable[..., Any] | None) -> Callable[..., Any]:
            # After a termination Celery has announced `revoked`; a second outcome would contradict
            # it.
            return lambda result: None if task.terminated or report is None else report(result)

        return _Terminable(self.executor.submit(run), task)

    def terminate_job(self, pid: int, signal: Any = None) -> None:  # noqa: ARG002 - Celery's signature
        """Terminate the task of that number."""
        task = self._tasks.get(pid)
        if task is not None:
            task.terminate()
