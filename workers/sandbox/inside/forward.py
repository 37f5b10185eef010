"""Streams of bytes between a sandbox's processes and the worker, carried as frames.

Runs inside the sandbox: see `resident`, whose loop this uses. A stream is a tunnel; its number is
never reused. There are two kinds:

- The way out of a sandbox without a network: connections to a loopback port. Nothing listens until
  the worker requests it with the operation `listen`. What a process sends to the port is passed to
  the worker, which decides what to do with it (see `egress`). The numbers are positive and chosen
  here.
- Standard input and output of a live process (the operation `run` with a `tunnel`). The numbers are
  negative, chosen by the worker, and the tunnel begins without `open`.

A frame names the tunnel and an event:

open        to the worker    a process has connected
data        both             a payload of at least one byte
taken       both             so many `bytes` were passed on: as many more may be sent
end         both             this side sends no more
close       to the resident  deliver pending data, then close the connection
reset       both             the connection is broken; the resident delivers pending data, then
                             resets it

A tunnel that ended on this side is kept until the worker closes it. Frames for an unknown tunnel
are ignored.
"""

from __future__ import annotations

import select
import socket
import struct
from functools import partial

from . import frames

TYPE_CHECKING = False  # typing.TYPE_CHECKING without the import, which every start would pay for
if TYPE_CHECKING:
    from .loop import Loop

PORT = 3128
MAX_TUNNELS = 128
"""Further connections wait in the kernel until one has ended."""
WINDOW_BYTES = 128 << 10
"""How much of a tunnel may be unacknowledged in one direction; bounds what either side must
buffer."""
TAKEN_BYTES = WINDOW_BYTES // 4
"""How much is passed on before the other side is notified."""
CHUNK_BYTES = 32 << 10
"""The largest part of a tunnel's data: no command waits long behind it."""
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class Connection:
    """One process's connection to the port, or its standard input and output."""

    def __init__(self, number: int, link: socket.socket) -> None:
        self.number, self.link = number, link
        self.descriptor = link.fileno()
        self.credit = WINDOW_BYTES
        """How much more may be sent to the worker."""
        self.waiting = bytearray()
        """What the process has not read yet."""
        self.taken = 0
        """What the process has read and was not reported to the worker."""
        self.is_heard = True
        """The process may still send."""
        self.is_ending = self.is_closing = self.is_broken = False


class Forward:
    """All tunnels, and the listening port if there is one."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._listener: socket.socket | None = None
        self._connections: dict[int, Connection] = {}
        self._last_number = 0
        self._is_paused = False

    def listen(self, port: int) -> int:
        """Listen on a port (0: any); every connection to it becomes a tunnel. Returns the port.

        Raises:
            OSError: the port is not available.
        """
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(MAX_TUNNELS)
        listener.setblocking(False)
        self._listener = listener
        self._watch_listener()
        return int(listener.getsockname()[1])

    def pair(self, number: int) -> int:
        """Begin a tunnel to a process that is about to start; return the process's descriptor."""
        link, theirs = socket.socketpair()
        link.setblocking(False)
        connection = self._connections[number] = Connection(number, link)
        self._watch(connection)
        return theirs.detach()

    def pause(self, paused: bool) -> None:
        """Stop or resume reading connections: output of commands is sent first."""
        if paused != self._is_paused:
            self._is_paused = paused
            for connection in self._connections.values():
                self._watch(connection)

    def frame(self, number: int, event: str, payload: bytes, taken: int) -> None:
        """Handle a frame of the worker.

        Raises:
            FrameError: it breaks the protocol.
        """
        connection = self._connections.get(number)
        if connection is None:
            return
        if event == "data":
            connection.waiting += payload
            if len(connection.waiting) > WINDOW_BYTES:
                raise frames.FrameError("more than the window")
        elif event == "taken":
            connection.credit += taken
        elif event == "end":
            connection.is_ending = True
        elif event in ("close", "reset"):
            connection.is_closing, connection.is_broken = True, event == "reset"
        else:
            raise frames.FrameError("an unknown event")
        self._deliver(connection)

    def _watch_listener(self) -> None:
        if self._listener is not None:
            is_open = len(self._connections) < MAX_TUNNELS
            handler = partial(self._on_connect, self._listener)
            self._loop.watch(self._listener.fileno(), handler, select.POLLIN if is_open else 0)

    def _on_connect(self, listener: socket.socket, _events: int) -> None:
        try:
            link, _address = listener.accept()
        except OSError:  # it was closed meanwhile, or no descriptor is left for it
            return
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._last_number += 1
        connection = self._connections[self._last_number] = Connection(self._last_number, link)
        self._send(connection, "open")
        self._watch(connection)
        self._watch_listener()

    def _watch(self, connection: Connection) -> None:
        reads = connection.is_heard and connection.credit > 0 and not self._is_paused
        events = (select.POLLIN if reads else 0) | (select.POLLOUT if connection.waiting else 0)
        if events:
            self._loop.watch(connection.descriptor, partial(self._on_event, connection), events)
        else:  # a broken connection would be reported forever, whatever the events
            self._loop.forget(connection.descriptor)

    def _on_event(self, connection: Connection, events: int) -> None:
        if events & select.POLLOUT:
            self._deliver(connection)
        elif connection.is_heard:  # also a broken one, which raises
            self._hear(connection)
        else:
            self._break(connection)

    def _hear(self, connection: Connection) -> None:
        if self._loop.is_behind:
            return  # `pause` follows
        try:
            data = connection.link.recv(min(CHUNK_BYTES, connection.credit))
        except BlockingIOError:
            return
        except OSError:
            self._break(connection)
            return
        if data:
            connection.credit -= len(data)
            self._send(connection, "data", data)
        else:
            connection.is_heard = False
            self._send(connection, "end")
        self._watch(connection)

    def _deliver(self, connection: Connection) -> None:
        """Pass on what the process reads; when nothing is left, end or close as requested."""
        try:
            if connection.waiting:
                sent = connection.link.send(connection.waiting)
                del connection.waiting[:sent]
                connection.taken += sent
            if connection.is_ending and not connection.waiting:
                connection.is_ending = False
                connection.link.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            if connection.number > 0 or connection.is_closing or not connection.is_heard:
                self._break(connection)
                return
            connection.waiting.clear()  # the process has ended: its last output is still unread
        if connection.is_closing and not connection.waiting:
            self._drop(connection)
            return
        if connection.taken >= TAKEN_BYTES:
            header = {"event": "taken", "bytes": connection.taken}
            self._loop.send(frames.TUNNEL, connection.number, header)
            connection.taken = 0
        self._watch(connection)

    def _break(self, connection: Connection) -> None:
        """Report that the process's side has broken, and drop the connection."""
        self._send(connection, "reset")
        self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self._loop.forget(connection.descriptor)
        if connection.is_broken:  # the process must not take this for an orderly end
            connection.link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        connection.link.close()
        del self._connections[connection.number]
        self._watch_listener()

    def _send(self, connection: Connection, event: str, payload: bytes = b"") -> None:
        self._loop.send(frames.TUNNEL, connection.number, {"event": event}, payload)
