"""Requests that go to the checked address of a receiver, and nowhere else.

The address is checked where the connection is made, and the connection is made to it; TLS still
asks for the name. Nothing is redirected, no proxy of the environment is used, and of an answer only
the status is looked at.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpcore2

from fanout.orchestrator.server.notifications.receivers import Receivers, UrlRefused

REQUEST_SECONDS = 10.0
"""From the lookup of the name to the status: a receiver that has more to do does it afterwards."""
MAX_CONNECTIONS = 256
"""As many as the notifier sends at once: none waits for a connection."""
PROXY_PORTS = {"http": 80, "https": 443}


class NotSent(Exception):
    """A request failed without an answer; the text is one of ours, and says why."""


@dataclass(frozen=True)
class Answer:
    """What a receiver answered."""

    status: int
    retry_after: float | None = None
    """Seconds for which the receiver wants to be left alone."""


class _CheckedNetwork(httpcore2.AsyncNetworkBackend):
    """Connects to the addresses that the rules for receivers allow."""

    def __init__(self, receivers: Receivers) -> None:
        self._inner = httpcore2.AnyIOBackend()
        self._receivers = receivers

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore2's own
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to a host's first address that answers.

        Raises:
            UrlRefused: An address is not allowed.
            httpcore2.ConnectError: None answers.
        """
        failure: Exception = httpcore2.ConnectError("no address")
        for address in await self._receivers.addresses(host, port):
            try:
                return await self._inner.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore2.AsyncNetworkStream:
        """Refuse: a socket of this machine is no receiver."""
        raise UrlRefused("Sockets of this machine are not notified.")

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await self._inner.sleep(seconds)


class PinnedHttp:
    """Posts to receivers; close it when it is not needed any more.

    Args:
        receivers: The rules for URLs.
        ca_file: A PEM file of certificate authorities that count besides the system's.
        proxy: The URL of a proxy that makes the connections, and looks up the names.
    """

    def __init__(
        self, receivers: Receivers, *, ca_file: Path | None = None, proxy: str | None = None
    ) -> None:
        self._receivers = receivers
        tls = ssl.create_default_context()
        if ca_file is not None:
            tls.load_verify_locations(ca_file)
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=tls,
            proxy=None if proxy is None else _proxy(proxy),
            max_connections=MAX_CONNECTIONS,
            max_keepalive_connections=0,
            network_backend=None if proxy else _CheckedNetwork(receivers),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.aclose()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Send a request, and return what the receiver answered.

        Raises:
            UrlRefused: The URL may not be notified.
            NotSent: There was no answer.
        """
        target = self._receivers.target(url)
        parts = httpcore2.URL(
            scheme=target.scheme, host=target.host, port=target.port, target=target.path
        )
        given: list[tuple[str | bytes, str | bytes]] = [("Host", target.authority)]
        given += headers.items()
        timeouts = dict.fromkeys(("connect", "read", "write", "pool"), REQUEST_SECONDS)
        try:
            async with (
                asyncio.timeout(REQUEST_SECONDS),
                self._pool.stream(
                    *("POST", parts), headers=given, content=body, extensions={"timeout": timeouts}
                ) as response,
            ):
                return Answer(response.status, _retry_after(response.headers))
        except (TimeoutError, httpcore2.TimeoutException):
            raise NotSent(f"no answer within {REQUEST_SECONDS:g} s") from None
        except httpcore2.ConnectError as error:
            raise NotSent(_why_not_connected(error)) from None
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.ProxyError):
            raise NotSent("the connection broke") from None


def _proxy(url: str) -> httpcore2.Proxy:
    """Return a proxy, with the user and the password in its URL."""
    parts = urlsplit(url)
    address = httpcore2.URL(
        scheme=parts.scheme,
        host=str(parts.hostname),
        port=parts.port or PROXY_PORTS[parts.scheme],
        target="/",
    )
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return httpcore2.Proxy(address, auth=(user, password) if user else None)


def _why_not_connected(error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return "its certificate is not trusted"
        cause = cause.__cause__ or cause.__context__
    return "no connection"


def _retry_after(headers: Iterable[tuple[bytes, bytes]]) -> float | None:
    """Return the seconds of the header `Retry-After`, which has a number or a time."""
    found = next((value for name, value in headers if name.lower() == b"retry-after"), None)
    if found is None:
        return None
    text = found.decode("latin-1").strip()
    if text.isascii() and text.isdigit() and len(text) < len("1000000000"):
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, IndexError):
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())
