"""The watchdog: detects that the worker hangs, and exits, so that another one is started.

One agent that blocks the loop stops all agents and the heartbeats. The watchdog runs in its own
thread. It logs the stack of the loop's thread. If the loop stays blocked for half a lease, it
releases the jobs with a connection of its own and exits. The job that blocked the loop uses up an
attempt, so that it cannot stop one worker after the other; the other jobs do not.

The same holds for the threads that calls which block run in. Each that hangs is counted. When half
of them hang the worker takes no more jobs, and if that does not pass it exits in the same way. A
call of the system may never return: a file of a host that is away, a device, a pipe. Its thread
cannot be ended, so each such call takes one thread from all jobs, until nothing runs any more.

Code that keeps the interpreter to itself stops the watchdog too. Then a timer of the interpreter,
which needs no Python, prints the stacks and ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from weakref import WeakKeyDictionary

import structlog

from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger

from ..heartbeat import elapsed_clock

log = structlog.get_logger(__name__)

Result = TypeVar("Result")

THREADS = 32
"""The number of threads, the most that asyncio has: they are started when they are needed."""

LOOK_SECONDS = 0.25
"""How often the loop is checked."""
LOGGED_AFTER_SECONDS = 1.0
"""A loop that is blocked for this long has a fault: callbacks take milliseconds."""
PATIENCE = 0.5
"""The share of a lease after which the worker exits. The last renewal may be a quarter of a lease
older than the block, and after 80 % of a lease its jobs may start elsewhere."""
RELEASE_SECONDS = 2.0
"""The time limit for releasing the jobs; then the process exits without that."""
UNFIT_SHARE = 0.5
"""The share of hanging threads: the others are enough for a while, and do what they can."""
UNFIT_LEASES = 2.0
"""The number of leases for which half of the threads may hang: what they wait for may come back."""
INTERPRETER_SECONDS = 60.0
"""Without one step of this thread. Its jobs run elsewhere long before; a machine that is overloaded
lets each thread take a step in this time."""
TIMER_SECONDS = 5.0
"""How often the interpreter's timer is set again: each time starts a thread."""
STDERR = 2
"""The file, whatever has taken the place of `sys.stderr`."""
MAX_STACK_FRAMES = 25
"""The number of innermost frames that are logged: what blocks the loop is among them."""
EXIT_BLOCKED = 70
"""EX_SOFTWARE of sysexits.h, on which a supervisor starts another worker."""

ReleaseClaims = Callable[[Collection[Claim], Collection[str]], Awaitable[None]]
"""Releases claims; the second argument are the jobs that made the worker hang, as far as known."""


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


class JobsOfTasks:
    """Maps each task of a loop to the job to which the log was bound when the task was made."""

    def __init__(self) -> None:
        self._jobs: WeakKeyDictionary[asyncio.Task[Any], str] = WeakKeyDictionary()

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Record the job of every task that the loop makes from now on."""
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
        """Return the job whose code the loop runs now; None if it is none or unknown."""
        task = asyncio.current_task(loop)
        return None if task is None else self._jobs.get(task)


class Watchdog:
    """Watches one loop.

    Args:
        loop: The loop, which runs in another thread.
        thread_id: That thread's id.
        claims: Returns the worker's current claims.
        release_claims: Releases them; it runs on a loop of its own.
        lease_seconds: The length of a lease.
        threads: The threads of the loop's blocking calls.
        end_process: Ends the process, with an exit code.
        interpreter_seconds: As INTERPRETER_SECONDS.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        thread_id: int,
        claims: Callable[[], Collection[Claim]],
        release_claims: ReleaseClaims,
        lease_seconds: float,
        *,
        threads: CallThreads,
        end_process: Callable[[int], NoReturn] = os._exit,
        interpreter_seconds: float = INTERPRETER_SECONDS,
    ) -> None:
        self.hanging_threads = 0
        """How many threads hang in a call of the system."""
        self._threads = threads
        self._end = end_process
        self._unfit_seconds = lease_seconds * UNFIT_LEASES
        self._unfit_since: float | None = None
        self._interpreter_seconds = interpreter_seconds
        self._timer_set_at = -TIMER_SECONDS
        self._loop = loop
        self._thread_id = thread_id
        self._claims = claims
        self._release_claims = release_claims
        self._patience_seconds = lease_seconds * PATIENCE
        self._jobs = JobsOfTasks()
        self._jobs.install(loop)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Start the watchdog's thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the watchdog's thread."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    @property
    def unfit(self) -> str:
        """Why the worker cannot do its work, in words for people; empty when it can."""
        if self.hanging_threads < self._threads.threads * UNFIT_SHARE:
            return ""
        return f"{self.hanging_threads} of its {self._threads.threads} threads hang"

    def _watch(self) -> None:
        alive, asked_at, logged = threading.Event(), elapsed_clock(), False
        self._ask(alive)
        checked_at = asked_at
        while not self._ended.wait(LOOK_SECONDS):
            now = elapsed_clock()
            # A process that was paused as a whole has not blocked its loop.
            was_paused = now - checked_at > 2 * LOOK_SECONDS + LOGGED_AFTER_SECONDS
            checked_at = now
            self._set_timer(now)
            self._look_at_threads(now)
            if alive.is_set() or was_paused:
                alive, asked_at, logged = threading.Event(), now, False
                self._ask(alive)
            elif now - asked_at > self._patience_seconds:
                self._end_process("its loop is blocked", {self._jobs.running(self._loop)})
            elif now - asked_at > LOGGED_AFTER_SECONDS and not logged:
                logged = True
                log.error(
                    "the loop is blocked", job=self._jobs.running(self._loop), stack=self._stack()
                )

    def _look_at_threads(self, now: float) -> None:
        jobs = self._threads.hanging()
        if len(jobs) != self.hanging_threads:
            log.error(
                "threads hang in calls of the system",
                threads=len(jobs),
                jobs=sorted(filter(None, jobs)),
            )
        self.hanging_threads = len(jobs)
        if not self.unfit:
            self._unfit_since = None
        elif self._unfit_since is None:
            self._unfit_since = now
        elif now - self._unfit_since > self._unfit_seconds:
            self._end_process(self.unfit, jobs)

    def _set_timer(self, now: float) -> None:
        """Have the process end if this thread takes no step any more."""
        if now - self._timer_set_at >= TIMER_SECONDS:
            self._timer_set_at = now
            faulthandler.dump_traceback_later(self._interpreter_seconds, exit=True, file=STDERR)

    def _ask(self, alive: threading.Event) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the worker ends
            self._loop.call_soon_threadsafe(alive.set)

    def _stack(self) -> list[str]:
        """Return the stack of the loop's thread: file, line and function, innermost last."""
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - there is no public way
        found = traceback.extract_stack(frame)[-MAX_STACK_FRAMES:] if frame else []
        return [f"{entry.filename}:{entry.lineno} {entry.name}" for entry in found]

    def _end_process(self, why: str, jobs: Collection[str | None]) -> None:
        blockers, claims = {job for job in jobs if job is not None}, self._claims()
        log.error("worker exits", why=why, blockers=sorted(blockers), jobs=len(claims))
        with contextlib.suppress(Exception):  # unreleased leases lapse
            asyncio.run(self._release(claims, blockers))
        self._end(EXIT_BLOCKED)

    async def _release(self, claims: Collection[Claim], blockers: Collection[str]) -> None:
        async with asyncio.timeout(RELEASE_SECONDS):
            await self._release_claims(claims, blockers)


async def release_claims(
    redis_url: str, keys: Keys, claims: Collection[Claim], blockers: Collection[str]
) -> None:
    """Release jobs without using up their attempts, except those that made the worker hang.

    Their attempts have failed; if it was the last one, the lease lapses. Failures are ignored.

    Args:
        redis_url: The Redis of the ledger. The connection is a new one: those of the worker are its
            loop's.
        keys: The names of the ledger's keys.
        claims: The worker's claims.
        blockers: The jobs that made the worker hang.
    """
    reason = "its worker was blocked"
    async with connect(redis_url) as redis:
        ledger = Ledger(redis, keys)
        await asyncio.gather(
            *(
                ledger.fail_attempt(claim.spec.id, claim.token, "it blocked its worker")
                if claim.spec.id in blockers
                else ledger.release(claim.spec.id, claim.token, reason)
                for claim in claims
            ),
            return_exceptions=True,
        )
