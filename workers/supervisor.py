"""Several worker processes of one command, and the program that supervises them.

One process runs hundreds of agents, but only one of them at a time: what they compute needs a core
for each process. They are forked from one that has imported what they need: a fork shares the
memory of everything that was imported before, and starts at once.

The process that has started them becomes the program `python -P -m fanout.workers.supervisor PID,…
[OPTION…]`, so that they stay its children and what it had imported takes no memory any more:

- It passes on the signals that end a worker, and ends when all have ended.
- It starts one again that was killed or that gave up, after a pause that grows.
- It kills one that stays stopped (SIGSTOP), whose jobs others have taken over by then.
- If it is killed itself, the kernel ends the others, which hand their jobs over. If it looks after
  one process only, that one is killed with it.

Each is in a process group of its own: a signal to the group of this one, as a terminal sends it,
would otherwise reach them twice, and the second one has another meaning.
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
from functools import partial
from importlib import import_module
from typing import NoReturn

from fanout.orchestrator.process_secrets import seal_process

JOBS_PER_PROCESS = 16
"""Concurrent jobs for which a further process pays: fewer do not keep one core busy, and each
process takes some 60 MiB."""
MOST_PROCESSES = 8
"""Unless more are asked for: a host with many cores is no reason to take gibibytes of memory."""


_restarts = False
"""Whether this process starts its program again where it would end because it hangs."""
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_NOT_ALLOWED = 4
"""The exit code of a worker that cannot start: its settings or options, Redis or the engine, or its
rights."""

FIRST_PAUSE_SECONDS = 0.5
"""Before a process is started again; the pause doubles with each further end."""
LONGEST_PAUSE_SECONDS = 30.0
"""Then the reason is probably one that only a person can remove."""
STEADY_SECONDS = 60.0
"""A process that has lived this long had no trouble starting: the pauses start again."""

LOOK_SECONDS = 1.0
"""Between two looks whether a process is stopped: each reads one small file."""
STOPPED_SECONDS = 20.0
"""After which a stopped process is killed: the leases of its jobs have lapsed."""

_PR_SET_PDEATHSIG = 1
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
_WAITED_FOR = {*_PASSED_ON, signal.SIGCHLD, signal.SIGALRM}
_FINAL = (0, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_NOT_ALLOWED)
"""Exit codes of a process that was asked to end, or that would end again in the same way."""


def restart_when_hanging() -> None:
    """Have this process start its program again when it hangs; it keeps its id and its lock files.

    A small process, which ends with this one, looks whether it is stopped, and lets it go on then.
    """
    global _restarts  # noqa: PLW0603 - it is a property of the process
    _restarts = True
    worker = os.getpid()
    fork(lambda: _continue_when_stopped(worker), signal.SIGKILL)


def end_hanging(exit_code: int) -> NoReturn:
    """End this process, or start its program again in its place; no other thread continues."""
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
    last_signal = read_parent_signal(processes)
    pids = [str(fork(partial(run, number), last_signal)) for number in range(processes)]
    program = (sys.executable, "-P", "-m", "fanout.workers.supervisor")
    os.execve(sys.executable, [*program, ",".join(pids), *sys.argv[1:]], os.environ)  # noqa: S606 - our own program


def main() -> NoReturn:
    """Supervise the processes that the first argument names; the others are a worker's options.

    Raises:
        SystemExit: All have ended; with the code of the first that failed for good, if one did.
    """
    pids = [int(pid) for pid in sys.argv.pop(1).split(",")]
    hold_signals()
    last_signal = read_parent_signal(len(pids))
    processes = [
        _Process(partial(_work, number), pid, last_signal) for number, pid in enumerate(pids)
    ]
    sys.exit(_Supervisor(processes).run())


def _work(number: int) -> None:
    """Be one of the processes; this imports what a worker needs, and this program does not."""
    gc.disable()  # until all is imported, as where a worker starts
    import_module("fanout.workers.__main__").be_one_of_several(number)


def hold_signals() -> None:
    """Let the signals that matter here wait until they are asked for, also across `exec`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)


def read_parent_signal(processes: int) -> signal.Signals:
    """Return what the kernel sends to each process when the supervisor has ended."""
    return signal.SIGKILL if processes == 1 else signal.SIGTERM


def fork(run: Callable[[], None], last_signal: signal.Signals) -> int:
    """Run a function in a process of its own, which ends with this one, and return its id.

    Args:
        run: It ends by SystemExit, as a program does.
        last_signal: What the kernel sends to it when this process has ended.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        _end_with_parent(parent, last_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED_FOR)
        _run_and_exit(run)
    return pid


class _Supervisor:
    """Waits for the processes, and starts them again.

    Args:
        processes: They have been started.
    """

    def __init__(self, processes: Sequence[_Process]) -> None:
        self._processes = processes
        self._ending = False
        self._failure = 0
        """The exit code of the process that made the others end; 0: none did."""

    def run(self) -> int:
        """Return the exit code when all processes have ended."""
        while any(one.wanted or one.pid for one in self._processes):
            pauses = [pause for one in self._processes if (pause := one.start_if_due()) > 0]
            signal.setitimer(signal.ITIMER_REAL, min([*pauses, LOOK_SECONDS]))
            number = signal.sigwait(_WAITED_FOR)
            if number in _PASSED_ON:
                self._end(number)
            for one in self._processes:
                one.kill_if_stopped()
            self._reap()
        return self._failure or max(one.exit_code for one in self._processes)

    def _end(self, number: int) -> None:
        self._ending = True
        for one in self._processes:
            one.wanted = False
            one.send(number)
            one.send(signal.SIGCONT)  # one that is stopped could not obey

    def _reap(self) -> None:
        for one in self._processes:
            if one.pid and one.has_ended() and one.wanted and one.exit_code in _FINAL:
                one.wanted = False
                if one.exit_code and not self._ending:
                    self._failure = one.exit_code
                    self._end(signal.SIGTERM)


class _Process:
    """One of the processes, and when it is started again.

    Args:
        run: What it runs if it is started again.
        pid: Its id.
        last_signal: As of `fork`.
    """

    def __init__(self, run: Callable[[], None], pid: int, last_signal: signal.Signals) -> None:
        self._run = run
        self._last_signal = last_signal
        self._pause = 0.0
        self._starts_at = 0.0
        self._started_at = time.monotonic()
        self.pid = pid
        """0 while it does not run."""
        self.wanted = True
        """Whether it is to be started again."""
        self.exit_code = 0
        self._stopped_since: float | None = None

    def start_if_due(self) -> float:
        """Start it if it is wanted and its pause is over; return what is left of the pause."""
        if self.pid or not self.wanted:
            return 0
        if (left := self._starts_at - time.monotonic()) > 0:
            return left
        self._started_at = time.monotonic()
        self.pid = fork(self._run, self._last_signal)
        return 0

    def send(self, number: int) -> None:
        """Send it a signal, if it runs; until it is reaped, its id is its own."""
        if self.pid:
            os.kill(self.pid, number)

    def kill_if_stopped(self) -> None:
        """Kill it if it has been stopped for longer than STOPPED_SECONDS."""
        now = time.monotonic()
        if not self.pid or not is_stopped(self.pid):
            self._stopped_since = None
        elif self._stopped_since is None:
            self._stopped_since = now
        elif now - self._stopped_since >= STOPPED_SECONDS:
            self.send(signal.SIGKILL)

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


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped; False where the kernel does not say so."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - few imports
            return file.read().rpartition(b")")[2].split()[0] == b"T"
    except (OSError, IndexError):
        return False


def _end_with_parent(parent: int, last_signal: signal.Signals) -> None:
    """Let the kernel send this process a signal when its parent ends; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, last_signal)
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


if __name__ == "__main__":
    seal_process()  # what it was started with has the keys
    main()
