"""An HTTP client that reaches public addresses only.

The address is checked where a connection is made, and the connection goes to the checked address:
so a redirect, a name that resolves to a private address, and a name that resolves to another
address the second time are all refused alike. Proxies of the environment are not used, because
they would make the connection.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Collection, Iterable
from typing import Any

import httpcore
import httpx

from fanout.orchestrator.deep_agent.failures import ToolMistake
from fanout.orchestrator.public_addresses import is_public

CONNECT_SECONDS = 10.0
"""For each address; a server that takes longer is not available."""

MAX_REDIRECTS = 5
"""Two are usual (to https, to www); more are loops and trackers."""

USER_AGENT = "fanout-web/1 (an agent that reads a page for a person)"


class AddressRefused(ToolMistake):
    """A host has no address that the agent may reach."""


class _PublicNetwork(httpcore.AsyncNetworkBackend):
    """Connects to public addresses.

    Args:
        allowed: Hosts that may have any address.
    """

    def __init__(self, allowed: Collection[str]) -> None:
        self._inner = httpcore.AnyIOBackend()
        self._allowed = {host.lower() for host in allowed}

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's own
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to a host's first address that answers, unless one of them is not public.

        Raises:
            AddressRefused: An address is not public.
        """
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in await self._addresses(host, port):
            try:
                return await self._inner.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        """Refuse: a socket of this machine is not the web."""
        raise AddressRefused("Sockets of this machine are not reached.")

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await self._inner.sleep(seconds)

    async def _addresses(self, host: str, port: int) -> list[str]:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )
        except OSError as error:
            raise httpcore.ConnectError(f"{host} is not found") from error
        addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
        if host.lower() not in self._allowed and not all(map(is_public, addresses)):
            raise AddressRefused(
                f"{host} is not on the public web: addresses of private networks, of this machine "
                "and of its provider are not reached."
            )
        return addresses


def public_client(seconds: float, allowed: Collection[str] = ()) -> httpx.AsyncClient:
    """Return a client that reaches public addresses; close it as a context.

    Args:
        seconds: The limit on each wait for the server.
        allowed: Hosts that may have any address, such as a search engine in one's own network.
    """
    transport = httpx.AsyncHTTPTransport()
    transport._pool = httpcore.AsyncConnectionPool(  # noqa: SLF001 - httpx has no argument for it
        ssl_context=_tls(), network_backend=_PublicNetwork(allowed)
    )
    return httpx.AsyncClient(
        transport=transport,
        timeout=httpx.Timeout(seconds, connect=CONNECT_SECONDS),
        follow_redirects=True,
        max_redirects=MAX_REDIRECTS,
        headers={"User-Agent": USER_AGENT},
        trust_env=False,
    )


def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)
