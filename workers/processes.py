"""Several worker processes of one command, forked from one that has imported what they need.

One process runs hundreds of agents, but only one of them at a time: what they compute needs a core
for each process. A fork shares the memory of everything that was imported before, and starts at
once. The first process does nothing but look after the others:

- It passes on the signals that end a worker, and ends when all have ended.
- It starts one again that was killed or that gave up, after a pause that grows.
- If it is killed itself, the kernel ends the others, which hand their jobs over.

Each is in a process group of its own: a signal to the group of the first one, as a terminal sends
it, would otherwise reach them twice, and the second one has another meaning.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from fanout.workers.startup import EXIT_NOT_ALLOWED, EXIT_UNREACHABLE, EXIT_USAGE

JOBS_PER_PROCESS = 16
"""Concurrent jobs for which a further process pays: fewer do not keep one core busy, and each
process takes some 60 MiB."""
MOST_PROCESSES = 8
"""Unless more are asked for: a host with many cores is no reason to take gibibytes of memory."""
FIRST_PAUSE_SECONDS = 0.5
"""Before a process is started again; the pause doubles with each further end."""
LONGEST_PAUSE_SECONDS = 30.0
"""Then the reason is probably one that only a person can remove."""
STEADY_SECONDS = 60.0
"""A process that has lived this long had no trouble starting: the pauses begin anew."""

_PR_SET_PDEATHSIG = 1
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_WAITED_FOR = {*_PASSED_ON, signal.SIGCHLD, signal.SIGALRM}
_FINAL = (0, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_NOT_ALLOWED)
"""Exit codes of a process that was told to end, or that would end again in the same way."""


def number_of_processes(configured: int, concurrency: int) -> int:
    """Return how many processes run the concurrent jobs.

    Args:
        configured: As many as are configured; 0: as many as pay.
        concurrency: How many jobs run at once.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    paying = min(cores, MOST_PROCESSES, concurrency // JOBS_PER_PROCESS)
    return min(configured or max(1, paying), concurrency)


def shares(total: int, processes: int) -> list[int]:
    """Return the parts of a number for so many processes, which differ by one at most."""
    return [max(1, (total + number) // processes) for number in range(processes)]


def run_processes(runs: Sequence[Callable[[], None]]) -> NoReturn:
    """Run each function in a process of its own, and end when all of them have ended.

    Args:
        runs: They end by SystemExit, as a program does.

    Raises:
        SystemExit: All have ended; with the code of the first that failed for good, if one did.
    """
    if threading.active_count() > 1:
        raise RuntimeError("A process with threads cannot be forked safely.")
    gc.collect()
    gc.freeze()  # the pages of what is shared are then not written to
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    sys.exit(_Supervisor(runs).run())


class _Supervisor:
    """Starts the processes and waits for them.

    Args:
        runs: What they run.
    """

    def __init__(self, runs: Sequence[Callable[[], None]]) -> None:
        self._slots = [_Slot(run) for run in runs]
        self._ending = False
        self._failure = 0
        """The exit code of the process that made the others end; 0: none did."""

    def run(self) -> int:
        """Return the exit code when all processes have ended."""
        while any(slot.wanted or slot.pid for slot in self._slots):
            pauses = [pause for slot in self._slots if (pause := slot.start_if_due()) > 0]
            signal.setitimer(signal.ITIMER_REAL, min(pauses, default=0))
            number = signal.sigwait(_WAITED_FOR)
            if number in _PASSED_ON:
                self._end(number)
            self._reap()
        return self._failure or max(slot.exit_code for slot in self._slots)

    def _end(self, number: int) -> None:
        self._ending = True
        for slot in self._slots:
            slot.wanted = False
            slot.send(number)

    def _reap(self) -> None:
        for slot in self._slots:
            if slot.pid and slot.has_ended() and slot.wanted and slot.exit_code in _FINAL:
                slot.wanted = False
                if slot.exit_code and not self._ending:
                    self._failure = slot.exit_code
                    self._end(signal.SIGTERM)


class _Slot:
    """One of the processes, and when it is started again.

    Args:
        run: What it runs.
    """

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._pause = 0.0
        self._starts_at = 0.0
        self._started_at = 0.0
        self.pid = 0
        self.wanted = True
        """Whether it is to be started, or started again."""
        self.exit_code = 0

    def start_if_due(self) -> float:
        """Start it if it is wanted and its pause is over; return what is left of the pause."""
        if self.pid or not self.wanted:
            return 0
        if (left := self._starts_at - time.monotonic()) > 0:
            return left
        self._started_at = time.monotonic()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.setpgid(0, 0)
            _end_with(parent)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED_FOR)
            _run_and_exit(self._run)
        return 0

    def send(self, number: int) -> None:
        """Send it a signal, if it runs; until it is reaped, its id is its own."""
        if self.pid:
            os.kill(self.pid, number)

    def has_ended(self) -> bool:
        """Return whether it has ended, and note how, and when it may start again."""
        ended, status = os.waitpid(self.pid, os.WNOHANG)
        if not ended:
            return False
        self.pid = 0
        code = os.waitstatus_to_exitcode(status)
        self.exit_code = code if code >= 0 else 128 - code
        steady = time.monotonic() - self._started_at >= STEADY_SECONDS
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS) if not steady else 0
        self._pause = self._pause or FIRST_PAUSE_SECONDS
        self._starts_at = time.monotonic() + self._pause
        return True


def _end_with(parent: int) -> None:
    """Let the kernel send this process SIGTERM when its parent ends; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before the request
            os._exit(1)


def _run_and_exit(run: Callable[[], None]) -> NoReturn:
    """Run a function as a program; nothing of the caller's is run in this process."""
    code = 1
    try:
        run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as Python reports it at a program's end
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
