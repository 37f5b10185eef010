"""Reads what `/proc` says about a process, without waiting long for any of them.

The kernel reads an environment from the process's memory, and waits while that is mapped anew. This
takes microseconds, but as long as its disk lets the process wait: a slow or hostile one could keep
the commands of all others from being stopped.
"""

from __future__ import annotations

import os
import threading
import time

_READ_BYTES = 64 * 1024
"""More than nearly every file of a process has, so that one read is enough."""

STUCK_SECONDS = 0.25
"""How long the kernel may wait for one process: a cancelled job has two seconds for its end."""

NEXT_STUCK_SECONDS = 0.05
"""The same for each further one of a look: what holds one process may hold a hundred."""

_stuck: set[int] = set()
"""Those processes for which a thread still waits; their environments count as empty until then."""


def content(path: str) -> bytes:
    """Return the content of a small file; empty when it cannot be read.

    A look reads thousands: this takes half of the time and of the system calls of `Path`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    parts = b""
    try:
        while part := os.read(descriptor, _READ_BYTES):
            parts += part
    except OSError:
        return b""
    finally:
        os.close(descriptor)
    return parts


def command_line(pid: int) -> bytes:
    """Return what a process was started as, its words ended by NUL; empty when it has ended.

    It blocks, also in the kernel as reading an environment does: call it after a look, and not for
    long lists. It is empty for a process at which a thread is stuck.
    """
    return b"" if pid in _stuck else content(f"/proc/{pid}/cmdline")


class GivenUp(Exception):
    """Nobody waits for this thread any more."""


class EnvironmentReader:
    """Reads environments in one thread; other threads can see whether it is stuck."""

    def __init__(self) -> None:
        self._thread = 0
        self._pid = 0
        self._since = 0.0
        self._is_given_up = False
        self._lock = threading.Lock()

    def read(self, pid: int) -> bytes:
        """Return a process's environment as the kernel has it; empty when the process has ended.

        It is also empty while another thread is stuck at it. Then the session, the limits, the
        mounts and the folder of the process still say whose it is.

        Raises:
            GivenUp: `give_up_if_stuck` was true.
        """
        if pid in _stuck:
            return b""
        self._thread, self._since, self._pid = threading.get_native_id(), time.monotonic(), pid
        environment = content(f"/proc/{pid}/environ")
        with self._lock:
            self._pid = 0
            if self._is_given_up:
                _stuck.discard(pid)
                raise GivenUp
        return environment

    def give_up_if_stuck(self, seconds: float) -> bool:
        """Return whether the thread is stuck: it ends when it can, and others pass its process by.

        On a busy machine a thread may wait as long for a processor; that one is not stuck.

        Args:
            seconds: How long it may wait for one process.
        """
        with self._lock:
            pid, waited = self._pid, time.monotonic() - self._since
            if pid and waited >= seconds and self._waits_in_the_kernel():
                self._is_given_up = True
                _stuck.add(pid)
        return self._is_given_up

    def _waits_in_the_kernel(self) -> bool:
        stat = content(f"/proc/self/task/{self._thread}/stat")
        return stat.rpartition(b")")[2].split(maxsplit=1)[:1] == [b"D"]
