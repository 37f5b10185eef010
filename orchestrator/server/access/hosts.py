"""The names that the service answers to, and the addresses that it listens on."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from ...configuration.api_settings import ApiSettings, is_loopback
from ...public_addresses import (
    Address,
    ascii_name,
    parse_address,
    parse_host,
    split_authority,
)
from .refusals import refuse

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
NOT_OURS = (
    "This service does not have the name that the header Host gives; FANOUT_API__TRUSTED_HOSTS "
    "adds names."
)
MALFORMED = "The header Host has to be given once, as a name or an address with or without a port."


class PublicWithoutKeys(Exception):
    """The service would be reachable by other machines without any key."""


def check_bind(host: str, *, can_authenticate: bool) -> None:
    """Check that the service may listen on an address.

    On the loopback it may without keys: nobody has access before a login link or a key is made.

    Args:
        host: The address.
        can_authenticate: Whether there is a key that works, or an issuer of tokens.

    Raises:
        PublicWithoutKeys: Other machines reach the address, and nobody could authenticate.
    """
    if not is_loopback(host) and not can_authenticate:
        raise PublicWithoutKeys(
            f"{host} is reached by other machines, and there is no key: make one with `fanout keys "
            "create NAME --scope submit --scope read`, or listen on 127.0.0.1."
        )


class HostCheck:
    """Refuses requests for another name (421), or for an invalid one (400).

    A site can resolve its own name to 127.0.0.1, and so make a browser call services of this
    machine as its own (DNS rebinding); the header Host still has that site's name.

    Args:
        app: The application.
        settings: The address of the service, and its names.
    """

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        public = urlsplit(settings.public_url or "").hostname
        given = [*settings.trusted_hosts, *([public] if public else [])]
        self._is_local = is_loopback(settings.host)
        self._names = {_host(name) for name in (*LOOPBACK_NAMES, settings.host, *given)} - {None}
        self._accepts_all = not self._is_local and not given
        """Whether other machines reach it under unknown names; then keys protect it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request for one of the service's names."""
        hosts = [value for name, value in scope.get("headers", ()) if name == b"host"]
        host = hosts[0].decode("latin-1").removesuffix(":") if hosts else ""
        parts = split_authority(host)
        if scope["type"] == "lifespan" or (len(hosts) <= 1 and self._accepts(parts, host)):
            await self._app(scope, receive, send)
        elif len(hosts) > 1 or (host and parts is None):
            await refuse(scope, receive, send, status=400, detail=MALFORMED)
        else:
            await refuse(scope, receive, send, status=421, detail=NOT_OURS)

    def _accepts(self, parts: tuple[str, int | None] | None, host: str) -> bool:
        if self._accepts_all:
            return parts is not None or not host
        name = _host(parts[0]) if parts else None
        if name is None:
            return False
        return name in self._names or (not self._is_local and not isinstance(name, str))


def _host(text: str) -> str | Address | None:
    """Return a name of the service, or an address, in the form for comparisons."""
    return parse_address(text.strip("[]")) or parse_host(ascii_name(text))
