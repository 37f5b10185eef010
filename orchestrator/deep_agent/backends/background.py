"""What commands of this machine leave running, and what that writes.

A process must neither wait for its output to be read nor die because nobody reads it. So one thread
of this program reads the outputs that ended commands' processes hold open, whichever event loop has
started them, until they are closed.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Sequence

from ...portable.command_output import RollingFile

_READ_BYTES = 256 * 1024
"""The size of one read from a pipe; a pipe's buffer is smaller."""


class _Reader:
    """The thread that reads outputs; there is one as long as there are outputs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._poll = select.epoll()
        self._files: dict[int, RollingFile] = {}

    def read(self, descriptors: Sequence[int], file: RollingFile) -> None:
        """Read pipes until they are closed, then close them here, and the file with the last."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # as after a fork
                self._poll, self._files = select.epoll(), {}
                self._thread = threading.Thread(
                    target=self._run, name="background-output", daemon=True
                )
            for descriptor in descriptors:
                self._files[descriptor] = file
                self._poll.register(descriptor, select.EPOLLIN)
            if not self._thread.is_alive():
                self._thread.start()

    def _run(self) -> None:
        while True:
            for descriptor, _events in self._poll.poll():
                try:
                    data = os.read(descriptor, _READ_BYTES)
                except BlockingIOError:
                    continue
                if data:
                    self._files[descriptor].add(data)
                elif self._is_last(descriptor):
                    return

    def _is_last(self, descriptor: int) -> bool:
        """Let a closed pipe go; return whether there is no other, and the thread ends."""
        with self._lock:
            self._poll.unregister(descriptor)
            os.close(descriptor)
            file = self._files.pop(descriptor)
            if file not in self._files.values():
                file.close()
            if not self._files:
                self._poll.close()
                self._thread = None
            return not self._files


_READER = _Reader()


def read_on(descriptors: Sequence[int], file: RollingFile) -> None:
    """Read pipes whose command has ended, as long as its processes hold them open.

    Args:
        descriptors: The pipes' ends for reading, which do not block; they are closed here.
        file: Where what is read is kept; it is closed with the last of them.
    """
    if descriptors:
        _READER.read(descriptors, file)
