"""The watchdog: sees that something blocks the worker's loop, and ends the worker before leases lapse.

One agent that blocks the loop stops all of them, and the heartbeats too. The watchdog looks from a
thread of its own. It logs where the loop stands; when that goes on for half a lease, it gives the
jobs back on a connection of its own and ends the process. The job that blocked loses an attempt, so
that it cannot take down one worker after the other; the others lose nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Collection
from typing import Any
from weakref import WeakKeyDictionary

import structlog

from orchestrator.jobs.store.ledger import Claim, Ledger
from workers.heartbeat import elapsed_clock

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.25
"""How often the loop is asked for a sign of life."""
LOGGED_AFTER_SECONDS = 1.0
"""A loop that is blocked for so long is a fault: callbacks take milliseconds."""
PATIENCE = 0.5
"""The share of a lease after which the worker steps down. The last renewal may be a quarter of a
lease older than the block, and behind 80 % of a lease its jobs may begin elsewhere."""
STEP_DOWN_SECONDS = 2.0
"""For giving the jobs back; then the process ends without that."""
MAX_STACK_FRAMES = 25
"""The innermost frames of the loop's thread: what blocks it stands there."""
EXIT_BLOCKED = 70
"""EX_SOFTWARE of sysexits.h: whatever supervises the worker starts another one."""

StepDown = Callable[[Collection[Claim], str | None], Awaitable[None]]
"""Gives claims back; the second is the id of the job that blocked, where that is known."""


class JobsOfTasks:
    """Knows for which job a task of the loop was made, from what the log is bound to there."""

    def __init__(self) -> None:
        self._jobs: WeakKeyDictionary[asyncio.Task[Any], str] = WeakKeyDictionary()

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on remember the job of every new task."""
        loop.set_task_factory(self._make)

    def _make(
        self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, **options)
        job_id = structlog.contextvars.get_contextvars().get("job")
        if job_id is not None:
            self._jobs[task] = job_id
        return task

    def running(self, loop: asyncio.AbstractEventLoop) -> str | None:
        """The job whose code the loop runs now."""
        task = asyncio.current_task(loop)
        return None if task is None else self._jobs.get(task)


class Watchdog:
    """Watches one loop.

    Args:
        loop: the loop, running in another thread.
        thread_id: that thread's.
        claims: what the worker holds now.
        step_down: gives it back; run on a loop of the watchdog's own.
        lease_seconds: the length of a lease.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        thread_id: int,
        claims: Callable[[], Collection[Claim]],
        step_down: StepDown,
        lease_seconds: float,
    ) -> None:
        self._loop = loop
        self._thread_id = thread_id
        self._claims = claims
        self._step_down = step_down
        self._patience_seconds = lease_seconds * PATIENCE
        self._jobs = JobsOfTasks()
        self._jobs.install(loop)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._ended.set()

    def _watch(self) -> None:
        alive, asked_at, logged = threading.Event(), elapsed_clock(), False
        self._ask(alive)
        looked_at = asked_at
        while not self._ended.wait(LOOK_SECONDS):
            now = elapsed_clock()
            paused = now - looked_at > 2 * LOOK_SECONDS + LOGGED_AFTER_SECONDS
            looked_at = now
            if (
                alive.is_set() or paused
            ):  # a process that was stopped as a whole has not blocked itself
                alive, asked_at, logged = threading.Event(), now, False
                self._ask(alive)
            elif now - asked_at > self._patience_seconds:
                self._end_process()
            elif now - asked_at > LOGGED_AFTER_SECONDS and not logged:
                logged = True
                log.error(
                    "the loop is blocked", job=self._jobs.running(self._loop), stack=self._stack()
                )

    def _ask(self, alive: threading.Event) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the worker ends
            self._loop.call_soon_threadsafe(alive.set)

    def _stack(self) -> list[str]:
        """Where the loop's thread stands: file, line and function, innermost last; no values."""
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - the one way to see another thread
        found = traceback.extract_stack(frame)[-MAX_STACK_FRAMES:] if frame else []
        return [f"{entry.filename}:{entry.lineno} {entry.name}" for entry in found]

    def _end_process(self) -> None:
        blocker, claims = self._jobs.running(self._loop), self._claims()
        log.error("the worker steps down: its loop is blocked", job=blocker, jobs=len(claims))
        with contextlib.suppress(Exception):  # it ends anyway, and then the leases lapse
            asyncio.run(self._within(self._step_down(claims, blocker)))
        os._exit(EXIT_BLOCKED)

    @staticmethod
    async def _within(work: Awaitable[None]) -> None:
        async with asyncio.timeout(STEP_DOWN_SECONDS):
            await work


async def give_back(ledger: Ledger, claims: Collection[Claim], blocker: str | None) -> None:
    """Release the jobs unharmed; the one that blocked loses its attempt (its last one lapses)."""
    reason = "its worker was blocked"
    await asyncio.gather(
        *(
            ledger.fail_attempt(claim.spec.id, claim.token, "it blocked its worker")
            if claim.spec.id == blocker
            else ledger.release(claim.spec.id, claim.token, reason)
            for claim in claims
        ),
        return_exceptions=True,
    )
