"""The connections of the server: their number, and the time limits for slow clients.

A connection has a cost before a key is checked. So connections are counted, in total and by
address, and a client has to make progress: it sends the head of a request within a time limit, and
sends a body and reads an answer at a minimum rate (`BodyLimit` measures bodies). If there are too
many, the connection that has waited longest for a request is closed for a new one, so silent
connections exclude nobody. A new one is refused only if all have a request.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

import h11
import structlog
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.server import ServerState

from .access.limits import limited_network
from .problems import PROBLEM
from .strict_http import MAX_HEAD_BYTES, StrictConnection

log = structlog.get_logger(__name__)

CHECK_SECONDS = 1.0
"""The time between two checks for connections that are too slow."""
LOG_SECONDS = 60.0
"""The time between two log lines about the same shortage: an attack does not fill the disk."""
RETRY_SECONDS = "5"
"""The time after which a refused client tries again."""
TOO_MANY = "The service has too many connections: try again in a few seconds."
TOO_SLOW = "The request did not come in time."
REASONS = ("refused", "replaced", "late", "stalled", "malformed")
"""The reasons why the server ends connections: all have a request; for a new one; no head of a
request in time; an answer that is not read; an invalid request."""
NONE: Mapping[str, str] = MappingProxyType({})
_SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """The limits of a server's connections."""

    in_all: int
    of_address: int
    """The most connections from one IPv4 address, or one IPv6 network of 64 bits."""
    head_seconds: float
    """The time for the head of a request, from the connection or from its first byte."""
    stall_seconds: float
    """How long an answer may be read more slowly than `bytes_per_second`."""
    bytes_per_second: int
    proxies: Sequence[str] = ()
    """Addresses and networks that are not counted by address; `*`: all."""


@dataclass
class _Peer:
    """The connections of one address."""

    connections: int = 0
    waiting: dict[HttpConnection, None] = field(default_factory=dict)
    """The connections without a request, the one that has waited longest first."""


class Connections:
    """The connections of one server.

    Args:
        limits: What they may use.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.ended: Counter[str] = Counter()
        """The numbers of connections that the server refused or closed, by reason."""
        self._open: dict[HttpConnection, str] = {}
        self._waiting: dict[HttpConnection, None] = {}
        self._peers: dict[str, _Peer] = {}
        self._trusts_all = "*" in limits.proxies
        self._proxies = [ipaddress.ip_network(one) for one in limits.proxies if one != "*"]
        self._is_refusal_due = Seldom(LOG_SECONDS)

    def __len__(self) -> int:
        """Return how many are open."""
        return len(self._open)

    def admit(self, connection: HttpConnection, address: str) -> bool:
        """Return whether a new connection is accepted; if it is, count it."""
        network = limited_network(address)
        peer = self._peers.get(network, _Peer())
        has_too_many = peer.connections >= self.limits.of_address and not self._is_proxy(address)
        if (has_too_many and not self._make_room(peer.waiting)) or (
            len(self) >= self.limits.in_all and not self._make_room(self._waiting)
        ):
            self.ended["refused"] += 1
            if self._is_refusal_due():
                log.warning("connections are refused: too many are open", connections=len(self))
            return False
        self._open[connection] = network
        self._peers[network] = peer
        peer.connections += 1
        self.waits(connection)
        return True

    def waits(self, connection: HttpConnection) -> None:
        """Record that a connection has no request, and may be closed for a new one."""
        if (network := self._open.get(connection)) is not None:
            for waiting in (self._waiting, self._peers[network].waiting):
                waiting.setdefault(connection)

    def works(self, connection: HttpConnection) -> None:
        """Record that a connection has a request."""
        self._waiting.pop(connection, None)
        if (network := self._open.get(connection)) is not None:
            self._peers[network].waiting.pop(connection, None)

    def remove(self, connection: HttpConnection) -> None:
        """Forget a connection."""
        self.works(connection)
        if (network := self._open.pop(connection, None)) is None:
            return
        peer = self._peers[network]
        peer.connections -= 1
        if not peer.connections:
            del self._peers[network]

    async def watch(self) -> None:
        """End connections that are too slow, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            now = time.monotonic()
            for connection in tuple(self._open):
                connection.check(now)

    def _make_room(self, waiting: dict[HttpConnection, None]) -> bool:
        """Close the connection that has waited longest; return whether there was one."""
        oldest = next(iter(waiting), None)
        if oldest is None:
            return False
        self.ended["replaced"] += 1
        self.remove(oldest)
        oldest.close()
        return True

    def _is_proxy(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return self._trusts_all
        return self._trusts_all or any(parsed in network for network in self._proxies)


class HttpConnection(H11Protocol):
    """One connection, with deadlines, and refusals in the form of the service's other ones.

    Args:
        connections: All connections of the server.
        config: The server's configuration.
        server_state: The common state of uvicorn's connections.
        app_state: The common state of the application.
    """

    def __init__(
        self,
        connections: Connections,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn: StrictConnection = StrictConnection(h11.SERVER, MAX_HEAD_BYTES)
        self._connections = connections
        self._owes_since: float | None = time.monotonic()
        """The time since which the client has to send the rest of a head, or of a body that nobody
        reads."""
        self._unsent: tuple[float, int] | None = None
        """The time when a check found the client slow to read an answer, and the remaining bytes.
        """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Serve the connection, if the limits permit it."""
        address = get_remote_addr(transport)
        if self._connections.admit(self, address[0] if address else ""):
            super().connection_made(transport)
            return
        self.transport = transport
        self._answer(503, TOO_MANY, {"Retry-After": RETRY_SECONDS})

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection."""
        self._connections.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process data of the client."""
        super().data_received(data)
        self._note_state()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._note_state()

    def resume_writing(self) -> None:
        """Continue an answer after the client has read a part of it."""
        self._unsent = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuse an invalid request, and end the connection."""
        self._connections.ended["malformed"] += 1
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        refusal = self.conn.refusal
        self._answer(refusal.status if refusal else 400, str(refusal or msg))

    def close(self) -> None:
        """End the connection at once."""
        self.transport.abort()

    def check(self, now: float) -> None:
        """End the connection if the client is too slow."""
        limits = self._connections.limits
        if self.transport.is_closing() or self.flow.write_paused:
            self._check_taking(now)
        elif self._owes_since is not None and now - self._owes_since > limits.head_seconds:
            self._connections.ended["late"] += 1
            self._answer(408, TOO_SLOW)

    def _check_taking(self, now: float) -> None:
        """End the connection if the client reads its answer too slowly."""
        limits = self._connections.limits
        left = self.transport.get_write_buffer_size()
        since, before = self._unsent or (now, left)
        if now - since < limits.stall_seconds:
            self._unsent = since, before
        elif before - left < limits.stall_seconds * limits.bytes_per_second:
            self._connections.ended["stalled"] += 1
            self.transport.abort()
        else:
            self._unsent = now, left

    def _note_state(self) -> None:
        """Record whether the connection has a request, and since when its rest is due."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._owes_since = None
            self._connections.works(self)
            return
        self._connections.waits(self)
        if not self.conn.is_within_request:
            self._owes_since = None
        elif self._owes_since is None:
            self._owes_since = time.monotonic()

    def _answer(self, status: int, detail: str, headers: Mapping[str, str] = NONE) -> None:
        """Answer with a problem, unless an answer has begun, and end the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(_problem(status, detail, headers))
        self.transport.close()


def _problem(status: int, detail: str, headers: Mapping[str, str]) -> bytes:
    """Return a response for a client whose request was never complete."""
    title = HTTPStatus(status).phrase
    problem = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    body = json.dumps(problem).encode()
    fields = {
        "Content-Type": PROBLEM,
        "Content-Length": str(len(body)),
        "Cache-Control": "no-store",
        "Connection": "close",
        **headers,
    }
    lines = [f"HTTP/1.1 {status} {title}", *(f"{name}: {fields[name]}" for name in fields), "", ""]
    return "\r\n".join(lines).encode("ascii") + body


class Seldom:
    """Is true at most once in each interval.

    Args:
        seconds: The interval.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = 0.0

    def __call__(self) -> bool:
        """Return whether the interval has passed since this was last true."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True


def log_exhaustion_seldom(loop: asyncio.AbstractEventLoop) -> None:
    """Log once a minute that connections cannot be accepted without descriptors or memory.

    asyncio tries again after a second. But it reports each of its attempts, as
    many as connections are accepted at once.
    """
    is_due = Seldom(LOG_SECONDS)

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _SCARCE or "socket" not in context:
            loop.default_exception_handler(context)
        elif is_due():
            log.error("connections wait: no more can be accepted now", reason=error.strerror)

    loop.set_exception_handler(handle)
