"""HTTP requests to a host with a credential, which is put in here.

TLS from the sandbox has ended; the connection to the host is another one, whose certificate is
verified. Every request has a connection of its own, so a request cannot be smuggled into another
one. Requests and responses are parsed and written again by h11; what is ambiguous is refused.

Also the first request of a proxy's client is parsed here. Programs differ in how they read a
malformed request, and attackers use the differences to evade allow-lists; so whatever does not
conform to RFC 9112 is refused.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal

import h11

from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.orchestrator.public_addresses import Address, parse_authority

from ..credential import Credential
from ..inside.forward import CHUNK_BYTES
from ..model_meter import AnswerReader, ModelMeter
from ..resident.tunnels import LINE_BYTES, TunnelBroken
from .tls import TlsTunnel
from .traffic import SandboxConnection
from .uplink import break_off

_TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"  # noqa: S105 - what the RFC calls a token
_REQUEST_LINE = re.compile(rf"({_TOKEN}) ([!-~]+) (HTTP/1\.[01])")
_HEADER = re.compile(rf"({_TOKEN}):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")
_URL = re.compile(r"http://([^/?#]*)([^#]*)", re.IGNORECASE)
_DIGITS = re.compile(r"[0-9]{1,18}")

_OF_THIS_HOP = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
    "te", "upgrade",
})  # fmt: skip
_NEVER_DROPPED = frozenset({"content-length", "transfer-encoding", "trailer"})
"""A header `Connection` may name headers of this hop, but never those that determine the end of a
body."""
_MASK = b"*"
HEAD_SECONDS = 15.0
"""How long a client may take for the handshake, and again to send its first request's headers."""
NEXT_REQUEST_SECONDS = 60.0
"""How long a connection is kept for the next request: as long as clients commonly keep theirs."""

Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], AbstractAsyncContextManager[Link]]
"""Opens a verified connection to the host."""

_HTTPS_PORT = 443
_UNCLEAR_PATH = re.compile(r"\\|//|/\.{1,2}(/|$)|%(2e|2f|5c|25|00)", re.IGNORECASE)
"""Spellings that a server may read as another path."""
_REPLACED = frozenset({"host", "accept-encoding", "expect"})
_KEPT_OUT = frozenset({"set-cookie", "set-cookie2"})
"""Headers of responses: a session that the credential began is a credential, too."""

Headers = list[tuple[str, str]]


class Refusal(Exception):
    """The request is refused; the client receives the status and the message."""

    def __init__(self, status: int, message: str, host: str = "", port: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.host, self.port = host, port


@dataclass(frozen=True)
class ProxyRequest:
    """A tunnel to a host, or one HTTP request to it."""

    host: str | Address
    port: int
    head: bytes | None
    """What is sent to the server first; None for a tunnel (CONNECT)."""
    body: int | Literal["chunked"]
    """The length of the body that follows."""


def parse_request(raw: bytes) -> ProxyRequest:
    """Parse a request's headers, the empty line at their end included.

    Raises:
        Refusal: the request is malformed, or not one that a proxy carries out.
    """
    first, *lines = raw.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    match = _REQUEST_LINE.fullmatch(first)
    if match is None:
        raise Refusal(400, "This is no HTTP/1.1 request.")
    method, target, version = match.groups()
    headers = [_header(line) for line in lines]
    if method == "CONNECT":
        host, port = _host(target, None)
        return ProxyRequest(host, port, None, 0)
    url = _URL.fullmatch(target)
    if url is None:
        raise Refusal(
            400, "This is a proxy: it takes CONNECT host:port, or requests for http://host/path."
        )
    authority, path = url.groups()
    host, port = _host(authority, 80)
    head = [
        f"{method} {path if path.startswith('/') else '/' + path} {version}",
        f"Host: {authority}",
    ]
    head += [
        f"{name}: {value}" for name, value in forwarded_headers(headers) if name.lower() != "host"
    ]
    head += ["Connection: close", "", ""]
    return ProxyRequest(host, port, "\r\n".join(head).encode("latin-1"), _body(headers, version))


def _header(line: str) -> tuple[str, str]:
    match = _HEADER.fullmatch(line)
    if match is None:
        raise Refusal(400, "A header is malformed.")
    return match[1], match[2]


def _host(authority: str, default_port: int | None) -> tuple[str | Address, int]:
    parsed = parse_authority(authority)
    if parsed is None:
        raise Refusal(400, "The request names no host and port, or more than these.")
    host, port = parsed[0], parsed[1] or default_port
    if port is None:
        raise Refusal(400, "CONNECT needs a port.")
    return host, port


def forwarded_headers(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the headers of a message without those of this hop."""
    named = {
        token.strip().lower()
        for name, value in headers
        if name.lower() == "connection"
        for token in value.split(",")
    }
    dropped = _OF_THIS_HOP | (named - _NEVER_DROPPED)
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def _body(headers: list[tuple[str, str]], version: str) -> int | Literal["chunked"]:
    lengths = [value for name, value in headers if name.lower() == "content-length"]
    codings = [value.lower() for name, value in headers if name.lower() == "transfer-encoding"]
    if codings == ["chunked"] and not lengths and version == "HTTP/1.1":
        return "chunked"
    if codings or len(lengths) > 1 or not all(_DIGITS.fullmatch(length) for length in lengths):
        raise Refusal(400, "Where the request's body ends is not clear.")
    return int(lengths[0]) if lengths else 0


class Redactor:
    """Replaces each occurrence of some texts by as many asterisks, across parts of a stream.

    The size of the stream stays the same. The end of a part that may be the beginning of a text is
    held back until more has come.
    """

    def __init__(self, texts: Sequence[bytes]) -> None:
        """Make a redactor.

        Args:
            texts: at least one, none of them empty.
        """
        longest_first = sorted(texts, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, longest_first)))
        self._beginnings = {text[:size] for text in texts for size in range(1, len(text))}
        self._longest = max(map(len, texts)) - 1
        self._rest = b""
        self.found = 0
        """How many occurrences were replaced."""

    def feed(self, data: bytes) -> bytes:
        """Add a part, and return what can be passed on."""
        data = self.redact(self._rest + data)
        sizes = range(min(self._longest, len(data)), 0, -1)
        held = next((size for size in sizes if data[-size:] in self._beginnings), 0)
        self._rest = data[len(data) - held :]
        return data[: len(data) - held]

    def finish(self) -> bytes:
        """Return what was held back."""
        rest, self._rest = self._rest, b""
        return rest

    def redact(self, data: bytes) -> bytes:
        """Return a whole text without the occurrences."""
        return self._pattern.sub(self._mask, data)

    def _mask(self, match: re.Match[bytes]) -> bytes:
        self.found += 1
        return _MASK * len(match[0])


class Exchange:
    """The requests of one connection."""

    def __init__(
        self,
        client: TlsTunnel,
        credential: Credential,
        connect: Connect,
        connection: SandboxConnection,
        meter: ModelMeter | None = None,
    ) -> None:
        """Make it.

        Args:
            client: the client's side.
            credential: what is put into the requests.
            connect: opens a connection to the host.
            connection: the account of its bytes.
            meter: reads what models answer; None: nothing does.
        """
        self._client = client
        self._meter = meter
        self._credential = credential
        self._connect = connect
        self._connection = connection
        self._server = h11.Connection(h11.SERVER, max_incomplete_event_size=LINE_BYTES)
        self._hidden = [text.get_secret_value().encode() for text in credential.hidden]

    async def serve(self) -> None:
        """Carry out requests until the client has no more.

        Raises:
            Refusal: a request is refused, and the connection is to be ended with that answer.
            TunnelBroken: either side broke off.
        """
        seconds = HEAD_SECONDS
        while (request := await self._next_request(seconds)) is not None:
            await self._carry_out(request)
            if {self._server.our_state, self._server.their_state} != {h11.DONE}:
                return
            self._server.start_next_cycle()
            seconds = NEXT_REQUEST_SECONDS

    async def _next_request(self, seconds: float) -> h11.Request | None:
        try:
            async with asyncio.timeout(seconds):
                event = await self._next_event()
        except TimeoutError:
            if seconds > HEAD_SECONDS:
                return None
            raise self._refusal(408, f"got no request within {seconds:g} s.") from None
        except h11.RemoteProtocolError as error:
            raise self._refusal(error.error_status_hint, "got no valid HTTP/1.1.") from None
        return event if isinstance(event, h11.Request) else None

    async def _next_event(self) -> h11.Event | type[h11.PAUSED]:
        while True:
            event = self._server.next_event()
            if event is not h11.NEED_DATA:
                return event  # type: ignore[return-value] # h11 types its marks as types
            if self._server.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            self._server.receive_data(await self._client.read())

    async def _carry_out(self, request: h11.Request) -> None:
        outgoing = self._outgoing(request)
        upstream = h11.Connection(h11.CLIENT)
        async with self._connect() as (reader, writer):
            self._write(writer, upstream.send(outgoing))
            sending = asyncio.create_task(self._send_body(upstream, writer))
            metering = self._metering(request)
            try:
                await self._receive(upstream, reader, metering)
            except Refusal:
                if sending.done() and isinstance(sending.exception(), TunnelBroken):
                    raise TunnelBroken from None  # the host got half of the request
                raise
            finally:
                if metering is not None:
                    metering.end()
                await cancel_and_wait(sending)

    def _metering(self, request: h11.Request) -> AnswerReader | None:
        if self._meter is None:
            return None
        path = request.target.decode("latin-1").partition("?")[0]
        return self._meter.reading(request.method.decode(), path)

    def _outgoing(self, request: h11.Request) -> h11.Request:
        """Return the request as the host receives it.

        Raises:
            Refusal: it is not permitted, or its meaning is not clear.
        """
        headers = _texts(request)
        names = [name.lower() for name, _ in headers]
        if names.count("host") != 1 or not self._is_host(dict(headers)["host"]):
            raise self._refusal(421, "is the only host of this connection.")
        if {"content-length", "transfer-encoding"} <= set(names) or (
            "transfer-encoding" in names and request.http_version == b"1.0"
        ):
            raise self._refusal(400, "got a request whose end is not clear.")
        method, target = request.method.decode(), request.target.decode("latin-1")
        if not target.startswith("/") or "#" in target or method == "CONNECT":
            raise self._refusal(400, "takes requests for a path only.")
        if not self._permits(method, target.partition("?")[0]):
            raise self._refusal(403, "may be sent other methods or paths only (credentials).")
        replaced = _REPLACED | {self._credential.header.lower()}
        sent = [("Host", self._authority)]
        sent += [
            (name, value) for name, value in forwarded_headers(headers) if name not in replaced
        ]
        sent += [
            (self._credential.header, self._credential.value.get_secret_value()),
            ("Accept-Encoding", "identity"),  # what is compressed cannot be searched
            ("Connection", "close"),
        ]
        return h11.Request(method=request.method, target=request.target, headers=_encoded(sent))

    @property
    def _authority(self) -> str:
        host, port = self._credential.host, self._credential.port
        return host if port == _HTTPS_PORT else f"{host}:{port}"

    def _is_host(self, header: str) -> bool:
        parsed = parse_authority(header)
        wanted = (self._credential.host, self._credential.port)
        return parsed is not None and (parsed[0], parsed[1] or _HTTPS_PORT) == wanted

    def _permits(self, method: str, path: str) -> bool:
        methods, paths = self._credential.methods, self._credential.paths
        if methods is not None and method not in methods:
            return False
        if paths is None:
            return True
        return not _UNCLEAR_PATH.search(path) and any(_matches(path, one) for one in paths)

    async def _send_body(self, upstream: h11.Connection, writer: asyncio.StreamWriter) -> None:
        try:
            async for data in self._body():
                self._write(writer, upstream.send(h11.Data(data=data)))
                await writer.drain()
        except TunnelBroken:
            break_off(writer)
            raise
        self._write(writer, upstream.send(h11.EndOfMessage()))
        await writer.drain()

    async def _body(self) -> AsyncIterator[bytes]:
        try:
            while not isinstance(event := await self._next_event(), h11.EndOfMessage):
                if not isinstance(event, h11.Data):
                    raise TunnelBroken
                yield bytes(event.data)
        except h11.RemoteProtocolError:
            raise TunnelBroken from None

    def _write(self, writer: asyncio.StreamWriter, data: bytes | None) -> None:
        if data:
            self._connection.sent(len(data))
            writer.write(data)

    async def _receive(
        self,
        upstream: h11.Connection,
        reader: asyncio.StreamReader,
        metering: AnswerReader | None,
    ) -> None:
        """Pass the response on, without the secret if it contains that."""
        redactor = Redactor(self._hidden)
        has_begun = False
        try:
            while True:
                event = upstream.next_event()
                if event is h11.NEED_DATA:
                    data = await reader.read(CHUNK_BYTES)
                    self._connection.received(len(data))
                    upstream.receive_data(data)
                elif isinstance(event, h11.Response):
                    has_begun = True
                    await self._send(_without_secrets(event, redactor))
                    if metering is not None:
                        metering.begin(event.status_code, _by_name(event))
                elif isinstance(event, h11.Data):
                    data = bytes(event.data)
                    await self._send(h11.Data(data=redactor.feed(data)))
                    if metering is not None:
                        metering.feed(data)
                elif isinstance(event, h11.EndOfMessage):
                    await self._send(h11.Data(data=redactor.finish()))
                    await self._send(h11.EndOfMessage())
                    return
                elif not isinstance(event, h11.InformationalResponse):
                    raise TunnelBroken
        except (h11.RemoteProtocolError, OSError):
            if has_begun:
                raise TunnelBroken from None
            raise self._refusal(502, "did not answer with valid HTTP/1.1.") from None

    async def _send(self, event: h11.Event) -> None:
        if data := self._server.send(event):
            await self._client.write(data)

    def _refusal(self, status: int, why: str) -> Refusal:
        host, port = self._credential.host, self._credential.port
        return Refusal(status, f"{host}, port {port}, {why}", host, port)


def _matches(path: str, pattern: str) -> bool:
    parts = map(re.escape, pattern.split("*"))
    return re.fullmatch(".*".join(parts), path) is not None


def _texts(message: h11.Request | h11.Response) -> Headers:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message.headers]


def _by_name(message: h11.Response) -> dict[str, str]:
    return {name.lower(): value for name, value in _texts(message)}


def _encoded(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


def _without_secrets(response: h11.Response, redactor: Redactor) -> h11.Response:
    kept = [
        (name, value)
        for name, value in forwarded_headers(_texts(response))
        if name not in _KEPT_OUT
    ]
    return h11.Response(
        status_code=response.status_code,
        reason=redactor.redact(bytes(response.reason)),
        headers=[(name, redactor.redact(value)) for name, value in _encoded(kept)],
    )
