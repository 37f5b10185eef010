"""The request of a proxy's client: its headers, parsed strictly.

Programs differ in how they read a malformed request, and attackers use the differences to evade
allow-lists; so whatever does not conform to RFC 9112 is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from fanout.orchestrator.public_addresses import Address, parse_authority

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
    head += [f"{name}: {value}" for name, value in passed_on(headers) if name.lower() != "host"]
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


def passed_on(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
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
