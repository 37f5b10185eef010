"""The types of an operation. Runs inside the sandbox: see `resident`."""

from __future__ import annotations

import errno
import threading

from workers.sandbox.inside import frames

TYPE_CHECKING = False  # typing.TYPE_CHECKING without the import, which every start would pay for
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Reply = tuple[dict[str, Any], bytes]
    """What the client gets: a result and a payload."""
    Operation = Callable[[dict[str, Any], bytes], Reply]
    SlowOperation = Callable[["Context", dict[str, Any], bytes], Reply]


class Refused(Exception):
    """An operation's own failure; the client receives its kind and its message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Context:
    """A slow operation's connection to its client."""

    def __init__(self, send_part: Callable[[bytes], None]) -> None:
        self._send_part = send_part
        self._credits = threading.Semaphore(frames.CHUNKS_IN_FLIGHT)
        self.cancelled = False
        """The client no longer waits for the reply."""

    def send_chunk(self, data: bytes) -> None:
        """Send a part of the reply, at most `frames.CHUNK_BYTES`.

        Waits while the client is behind.

        Raises:
            InterruptedError: the client no longer waits for the reply.
        """
        self._credits.acquire()
        if self.cancelled:
            raise InterruptedError(errno.EINTR, "cancelled")
        self._send_part(data)

    def credit(self) -> None:
        """Count one part that the client has received."""
        self._credits.release()

    def cancel(self) -> None:
        """Stop a waiting `send_chunk`, and every later one."""
        self.cancelled = True
        self._credits.release()
