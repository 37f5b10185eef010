"""Child processes that other commands can find: each holds a lock as long as it lives.

A process id in a file is not sufficient, because ids are reused. Here the child inherits an open,
locked file: while the lock is held the child lives, and the id in the file is its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from ..client.state_folder import try_lock
from ..private_files import open_private_file

POLL_SECONDS = 0.05
"""The interval of checks whether a process has ended: short enough not to be noticed, and cheap."""
LOOK_SECONDS = 0.2
"""The time for another command's check of a lock, which takes microseconds, on a busy machine a
scheduler's turn."""
KILL_WAIT_SECONDS = 5.0
"""The time to wait after SIGKILL, which ends a process at once, unless it hangs in the kernel."""

_PR_SET_PDEATHSIG = 1
_HELP_HINTS = ("Run 'docker", "See 'docker")
"""Lines that the docker client writes after its error message."""


class ChildProcess:
    """One named process of a folder.

    Args:
        folder: The folder of `<name>.lock`, which contains the process's id, and of `<name>.log`,
            which contains its output.
        name: Its name.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.log_path = folder / f"{name}.log"
        self._lock_path = folder / f"{name}.lock"
        self._popen: subprocess.Popen[bytes] | None = None

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        outlives_parent: bool,
        stdin: Path = Path(os.devnull),
        umask: int = -1,
    ) -> None:
        """Start it in its own session.

        Args:
            argv: The program and its arguments.
            env: Its whole environment.
            outlives_parent: Whether it continues to run after this process. Otherwise it receives
                SIGTERM when the thread that starts it ends, even by SIGKILL (on Linux; elsewhere
                only `stop` ends it).
            stdin: The file that it reads as standard input.
            umask: The permissions that its new files do not get; -1: those of this process.

        Raises:
            OSError: The program or the folder cannot be used, or the process runs already.
        """
        with (
            open_private_file(self._lock_path) as lock,
            open_private_file(self.log_path) as log,
            stdin.open("rb") as source,
        ):
            _lock(lock)
            self._popen = subprocess.Popen(  # noqa: S603 - the argv is ours
                argv,
                env=dict(env),
                stdin=source,
                stdout=log,
                stderr=log,
                start_new_session=True,
                umask=umask,
                pass_fds=(lock.fileno(),),
                preexec_fn=None if outlives_parent else _dies_with_parent(),  # noqa: PLW1509 - prctl
            )
            lock.truncate(0)
            lock.write(str(self._popen.pid).encode())

    @property
    def is_alive(self) -> bool:
        """Whether the process lives, whichever command started it."""
        if self._popen is not None:
            self._popen.poll()
        try:
            with self._lock_path.open("rb") as lock:
                return not try_lock(lock, fcntl.LOCK_SH)
        except FileNotFoundError:
            return False

    @property
    def pid(self) -> int | None:
        """Its process id; None when it does not live."""
        if not self.is_alive:
            return None
        with contextlib.suppress(OSError, ValueError):
            return int(self._lock_path.read_bytes())
        return None

    def is_of(self, pid: int) -> bool:
        """Return whether it has started a process: they are all in its own session."""
        try:
            return pid > 0 and os.getsid(pid) == self.pid
        except ProcessLookupError:
            return False

    async def stop(self, grace_seconds: float) -> bool:
        """Send SIGTERM to its group, even if it is stopped, and then SIGKILL to its session.

        Args:
            grace_seconds: The time between the two.

        Returns:
            Whether it has ended; False if even SIGKILL does not end it, because it hangs in the
            kernel.
        """
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        return await self._ends_within(grace_seconds) or await self.kill()

    async def kill(self) -> bool:
        """Send SIGKILL to all processes of its session, on Linux; else to its group.

        Returns as `stop`.
        """
        self._signal(signal.SIGKILL)
        for pid in self._session():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return await self._ends_within(KILL_WAIT_SECONDS)

    def forget(self) -> None:
        """Delete its files after its final end; nobody may start it meanwhile."""
        for path in (self._lock_path, self.log_path):
            path.unlink(missing_ok=True)

    def last_log_line(self) -> str:
        """Return the last line of its log for an error's text; empty when it wrote nothing."""
        with contextlib.suppress(OSError), self.log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
            messages = [line for line in lines if line and not line.startswith(_HELP_HINTS)]
            return messages[-1][:500] if messages else ""
        return ""

    def _session(self) -> list[int]:
        """Return the ids of the processes of its session, each of which may hold the lock."""
        leader = self.pid
        if leader is None or sys.platform != "linux":
            return []
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(ProcessLookupError, ValueError):  # ended, or no process
                if os.getsid(pid := int(folder.name)) == leader:
                    found.append(pid)
        return found

    def _signal(self, number: signal.Signals) -> None:
        pid = self.pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)

    async def _ends_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.is_alive:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True


def _lock(file: IO[bytes]) -> None:
    """Acquire the lock; another command that checks it holds it for a moment.

    Raises:
        OSError: The lock is still held after `LOOK_SECONDS`.
    """
    deadline = time.monotonic() + LOOK_SECONDS
    while not try_lock(file, fcntl.LOCK_EX):
        if time.monotonic() > deadline:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        time.sleep(POLL_SECONDS / 10)


def _dies_with_parent() -> Callable[[], None] | None:
    """Return a function for the child that requests SIGTERM when its parent ends."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before the request
            os._exit(1)

    return arrange
