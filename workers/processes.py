"""Several worker processes of one command, forked from one that has imported what they need.

One process runs hundreds of agents, but only one of them at a time: what they compute needs a core
for each process. A fork shares the memory of everything that was imported before, and starts at
once. The first process then becomes their `supervisor`.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from fanout.workers.supervisor import (
    LOOK_SECONDS,
    STOPPED_SECONDS,
    fork,
    hold_signals,
    is_stopped,
    last_signal_of,
)

JOBS_PER_PROCESS = 16
"""Concurrent jobs for which a further process pays: fewer do not keep one core busy, and each
process takes some 60 MiB."""
MOST_PROCESSES = 8
"""Unless more are asked for: a host with many cores is no reason to take gibibytes of memory."""


_restarts = False
"""Whether this process starts its program again where it would end because it hangs."""


def restart_when_hanging() -> None:
    """Have this process start its program again when it hangs; it keeps its id and its lock files.

    A small process, which ends with this one, looks whether it is stopped, and lets it go on then.
    """
    global _restarts  # noqa: PLW0603 - it is a property of the process
    _restarts = True
    worker = os.getpid()
    fork(lambda: _continue_when_stopped(worker), signal.SIGKILL)


def end_hanging(exit_code: int) -> NoReturn:
    """End this process, or start its program again in its place; no other thread goes on."""
    if _restarts:
        os.execve(sys.executable, sys.orig_argv, os.environ)  # noqa: S606 - our own program
    os._exit(exit_code)


def _continue_when_stopped(worker: int) -> None:
    """Let a process go on that has been stopped for long; its jobs run elsewhere by then."""
    stopped_since: float | None = None
    while True:
        time.sleep(LOOK_SECONDS)
        if not is_stopped(worker):
            stopped_since = None
        elif stopped_since is None:
            stopped_since = time.monotonic()
        elif time.monotonic() - stopped_since >= STOPPED_SECONDS:
            os.kill(worker, signal.SIGCONT)


def number_of_processes(configured: int, concurrency: int) -> int:
    """Return how many processes run the concurrent jobs.

    Args:
        configured: As many as are configured; 0: as many as pay.
        concurrency: How many jobs run at once.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    paying = min(cores, MOST_PROCESSES, concurrency // JOBS_PER_PROCESS)
    return min(configured or max(1, paying), concurrency)


def share(total: int, processes: int, number: int) -> int:
    """Return one process's part of a number: the parts of all differ by one at most.

    Args:
        total: The number.
        processes: How many processes there are.
        number: Which of them it is, from 0.
    """
    return max(1, (total + number) // processes)


def run_processes(run: Callable[[int], None], processes: int) -> NoReturn:
    """Run a function in several processes, and become the program that looks after them.

    Args:
        run: Is given the process's number, from 0; it ends by SystemExit, as a program does.
        processes: How many.
    """
    if threading.active_count() > 1:
        raise RuntimeError("A process with threads cannot be forked safely.")
    gc.collect()
    gc.freeze()  # the pages of what is shared are then not written to
    hold_signals()
    last_signal = last_signal_of(processes)
    pids = [str(fork(partial(run, number), last_signal)) for number in range(processes)]
    program = (sys.executable, "-P", "-m", "fanout.workers.supervisor")
    os.execve(sys.executable, [*program, ",".join(pids), *sys.argv[1:]], os.environ)  # noqa: S606 - our own program
