"""The resident's event loop, and what an operation sees of it. Runs inside: see `resident`."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections import deque

from . import frames

TYPE_CHECKING = False  # typing.TYPE_CHECKING without the import, which every start would pay for
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Handler = Callable[[int], object]
    Reply = tuple[dict[str, Any], bytes]
    """What the client gets: a result and a payload."""
    Operation = Callable[[dict[str, Any], bytes], Reply]
    SlowOperation = Callable[["Context", dict[str, Any], bytes], Reply]

BEHIND_BYTES = 128 << 10
"""When this much waits for the peer, tunnels are not read, so that commands' output need not wait
behind them."""
STALLED_BYTES = 4 << 20
"""When this much waits for the peer, command output is not read until it has been sent."""
MAX_WAITING_BYTES = 32 << 20
"""When this much waits for the peer, requests are not read either."""


class Loop:
    """Descriptors, their handlers, and the frames to send."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._poll = select.poll()
        self._handlers: dict[int, Handler] = {}
        self._masks: dict[int, int] = {}
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        os.set_blocking(incoming, False)
        os.set_blocking(outgoing, False)

    @property
    def is_behind(self) -> bool:
        """Whether the peer is so far behind that tunnels are not read."""
        return self._waiting_bytes > BEHIND_BYTES

    @property
    def is_stalled(self) -> bool:
        """Whether the peer is so far behind that command output is not read."""
        return self._waiting_bytes > STALLED_BYTES

    @property
    def is_blocked(self) -> bool:
        """Whether the peer is so far behind that requests are not read."""
        return self._waiting_bytes > MAX_WAITING_BYTES

    def watch(self, descriptor: int, handler: Handler | None, events: int = select.POLLIN) -> None:
        """Call a handler (None: the present one) when one of the events occurs."""
        if handler is not None:
            self._handlers[descriptor] = handler
        if self._masks.get(descriptor) != events:
            self._masks[descriptor] = events
            self._poll.register(descriptor, events)

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor."""
        if self._masks.pop(descriptor, None) is not None:
            del self._handlers[descriptor]
            self._poll.unregister(descriptor)

    def wait(self, seconds: float) -> None:
        """Wait at most so many seconds for events, and call their handlers."""
        for descriptor, events in self._poll.poll(seconds * 1000 + 1):
            handler = self._handlers.get(descriptor)
            if handler is not None:
                handler(events)

    def receive(self) -> bytes | None:
        """Read what has arrived; empty when the peer has closed, None when nothing has arrived."""
        try:
            return os.read(self._incoming, 1 << 18)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def send(
        self, kind: int, number: int, header: dict[str, Any] | None = None, payload: bytes = b""
    ) -> None:
        """Send a frame as soon as the peer reads it; never waits.

        Raises:
            FrameError: the frame is too large.
        """
        frame = memoryview(frames.pack_frame(kind, number, header, payload))
        self._waiting.append(frame)
        self._waiting_bytes += len(frame)
        self._flush()

    def _flush(self, _events: int = 0) -> None:
        while self._waiting:
            frame = self._waiting[0]
            try:
                sent = os.write(self._outgoing, frame)
            except BlockingIOError:
                self.watch(self._outgoing, self._flush, select.POLLOUT)
                return
            except OSError:  # the peer has closed; the end of our input follows
                self._waiting.clear()
                self._waiting_bytes = 0
                break
            self._waiting_bytes -= sent
            self._waiting.popleft()
            if sent < len(frame):
                self._waiting.appendleft(frame[sent:])
        self.forget(self._outgoing)


class OperationRefused(Exception):
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
        self._end: Callable[[], None] = _nothing

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

    def when_cancelled(self, end: Callable[[], None]) -> None:
        """Call `end` when the client no longer waits; at once if it has stopped already.

        Args:
            end: ends what the operation waits for; must not wait, and may be called twice.
        """
        self._end = end
        if self.cancelled:
            end()

    def cancel(self) -> None:
        """Stop a waiting `send_chunk`, and every later one."""
        self.cancelled = True
        self._credits.release()
        self._end()


def _nothing() -> None:
    pass
