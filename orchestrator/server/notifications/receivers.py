"""The rules for receivers' URLs, which are not trusted, and requests to their checked addresses.

The service is in a private network, so a URL is checked when it is registered and each time it is
used, because names change their addresses. The connection is made to the checked address; TLS still
asks for the name. Redirects are not followed, no proxy of the environment is used, and only the
status of an answer is read.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import httpcore2

from ...jobs.store.subscription import MAX_URL_CHARACTERS
from ...public_addresses import Address, is_public, parse_address, parse_host

LOOKUP_SECONDS = 5.0
"""The time for the lookup of a name: a slower one fails, and is tried again."""
LOOKUPS_AT_ONCE = 32
"""The most lookups at once, in separate threads: a name server that does not answer delays nothing
else."""
PORTS = {"https": (443, 8443), "http": (80,)}
"""The ports of hosts that the operator does not name: those of web servers only."""
NOT_PUBLIC = (
    "The host of the URL is not found on the public internet; another one has to be allowed by an "
    "operator (FANOUT_NOTIFICATIONS__ALLOWED_HOSTS)."
)
"""The text is the same for a name that does not exist, so that it reveals nothing about the private
network."""

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host as texts; raises OSError when it has none."""

_PLAIN = re.compile(r"[!-\[\]-~]+")
"""The pattern of ASCII without spaces and backslashes, which programs read differently."""
REQUEST_SECONDS = 10.0
"""The time from the lookup of the name to the status: a receiver with more work does it afterwards.
"""
MAX_CONNECTIONS = 256
"""The most connections, as many as the notifier sends at once: none waits for a connection."""
PROXY_PORTS = {"http": 80, "https": 443}


class UrlRefused(ValueError):
    """A URL may not be notified; the text says why, and which URLs may."""


@dataclass(frozen=True)
class Target:
    """A checked URL, in the parts that a request needs: the text is parsed only once."""

    scheme: str
    host: str
    port: int
    path: str
    """The path with the query."""

    @property
    def authority(self) -> str:
        """Return the value of the header `Host`."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == PORTS[self.scheme][0] else f"{name}:{self.port}"


class Lookup:
    """Resolves names in separate threads."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LOOKUPS_AT_ONCE, "notify-lookup")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host.

        Raises:
            OSError: It has none, or the answer takes too long.
        """
        ask = asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        async with asyncio.timeout(LOOKUP_SECONDS):  # wait_for loses cancellations before 3.12
            found = await ask
        return list(dict.fromkeys(str(each[4][0]) for each in found))


class Receivers:
    """The rules for URLs.

    Args:
        allowed: Hosts, or `host:port`, that may have any address and any port, and be notified
            without TLS: receivers in the private network.
        resolve: Finds the addresses of a host.
        by_proxy: Whether a proxy makes the connections: it looks up the names, and refuses those of
            private networks.
    """

    def __init__(
        self,
        allowed: Collection[str] = (),
        resolve: Resolve | None = None,
        *,
        by_proxy: bool = False,
    ) -> None:
        self._by_proxy = by_proxy
        self._allowed = {each.lower() for each in allowed}  # their form: NotificationSettings
        self._resolve = resolve or Lookup()

    def target(self, url: str) -> Target:
        """Return the parts of a URL whose form is allowed.

        Raises:
            UrlRefused: It is not.
        """
        if len(url) > MAX_URL_CHARACTERS:
            raise UrlRefused(f"A URL has at most {MAX_URL_CHARACTERS} characters.")
        if not _PLAIN.fullmatch(url):
            raise UrlRefused("A URL has no spaces, backslashes, control or non-ASCII characters.")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise UrlRefused("This is not a URL.") from None
        if parts.scheme not in PORTS:
            raise UrlRefused("The URL of a receiver begins with https://.")
        if "@" in parts.netloc or "#" in url:
            raise UrlRefused("The URL of a receiver has no user, password or fragment.")
        host = _host(parts)
        port = PORTS[parts.scheme][0] if port is None else port
        if not self._is_allowed(host, port):
            if parts.scheme != "https":
                raise UrlRefused("The URL of a receiver begins with https://.")
            if port not in PORTS[parts.scheme]:
                raise UrlRefused("The port of a receiver is 443 or 8443.")
            if parse_address(host) and not _is_public(host):  # a proxy would not look it up
                raise UrlRefused(NOT_PUBLIC)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return Target(parts.scheme, host, port, path)

    async def check(self, url: str) -> None:
        """Check the form of a URL, and where its host is.

        Raises:
            UrlRefused: It may not be notified.
        """
        target = self.target(url)
        if not self._by_proxy:
            await self.addresses(target.host, target.port)

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host, all of which may be connected to.

        Raises:
            UrlRefused: One of them is not public, or there is none.
        """
        try:
            found = await self._resolve(host, port)
        except (OSError, UnicodeError):
            found = ()
        is_allowed = self._is_allowed(host, port) or all(map(_is_public, found))
        if not found or not is_allowed:
            raise UrlRefused(NOT_PUBLIC)
        return found

    def _is_allowed(self, host: str, port: int) -> bool:
        name = f"[{host}]" if ":" in host else host
        return not self._allowed.isdisjoint((host, name, f"{name}:{port}"))


def _host(parts: SplitResult) -> str:
    """Return the host of a URL: a name in lower case, or an address in its usual form."""
    authority = parts.netloc.rpartition(":")[0] if parts.port is not None else parts.netloc
    found: str | Address | None = parse_host(authority.removesuffix(":"))
    if found is None or authority.endswith("."):
        raise UrlRefused("The host of a receiver is a name, or an address in its usual form.")
    return str(found)


def _is_public(address: str) -> bool:
    try:
        return is_public(address)
    except ValueError:
        return False


class NotSent(Exception):
    """A request failed without an answer; the text is fanout's, and says why."""


@dataclass(frozen=True)
class ReceiverAnswer:
    """The answer of a receiver."""

    status: int
    retry_after: float | None = None
    """The seconds that the receiver asks to wait."""


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
        """Refuse: a socket of this machine is not a receiver."""
        raise UrlRefused("Sockets of this machine are not notified.")

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await self._inner.sleep(seconds)


class PinnedHttp:
    """Posts to receivers; close it when it is no longer needed.

    Args:
        receivers: The rules for URLs.
        ca_file: A PEM file of certificate authorities that are accepted in addition to the
            system's.
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

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> ReceiverAnswer:
        """Send a request, and return the receiver's answer.

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
                    "POST", parts, headers=given, content=body, extensions={"timeout": timeouts}
                ) as response,
            ):
                return ReceiverAnswer(response.status, _retry_after(response.headers))
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
