"""Which URLs may be notified: a stranger chooses them, and the service stands in a private network.

A URL is checked when it is registered and each time it is used, since names change their addresses.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from fanout.orchestrator.jobs.store.subscription import MAX_URL_CHARACTERS
from fanout.orchestrator.public_addresses import Address, is_public, parse_address, parse_host

LOOKUP_SECONDS = 5.0
"""Of a name: what takes longer fails, and is tried again."""
LOOKUPS_AT_ONCE = 32
"""In threads of their own: a name server that does not answer holds up nothing else."""
PORTS = {"https": (443, 8443), "http": (80,)}
"""Of hosts that the operator does not name: those of web servers, and none of other services."""
NOT_PUBLIC = (
    "The host of the URL is not found on the public internet; another one has to be allowed by an "
    "operator (FANOUT_NOTIFICATIONS__ALLOWED_HOSTS)."
)
"""The same for a name that does not exist: a stranger learns nothing of the private network."""

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host as texts; raises OSError when it has none."""

_PLAIN = re.compile(r"[!-\[\]-~]+")
"""ASCII without spaces and backslashes, which programs read differently."""


class UrlRefused(ValueError):
    """A URL may not be notified; the text says why, and what may be."""


@dataclass(frozen=True)
class Target:
    """A checked URL, in the parts that a request needs: nobody parses the text a second time."""

    scheme: str
    host: str
    port: int
    path: str
    """With the query."""

    @property
    def authority(self) -> str:
        """Return the value of the header `Host`."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == PORTS[self.scheme][0] else f"{name}:{self.port}"


class Lookup:
    """Resolves names in threads of its own."""

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
        found = await asyncio.wait_for(ask, LOOKUP_SECONDS)
        return list(dict.fromkeys(str(each[4][0]) for each in found))


class Receivers:
    """The rules for URLs.

    Args:
        allowed: Hosts, or `host:port`, that may have any address and any port, and be notified
            without TLS: receivers in one's own network.
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
