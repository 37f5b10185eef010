"""Which names the service answers to, and which addresses it listens on."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from fanout.orchestrator.configuration.sections.api_settings import ApiSettings, is_loopback
from fanout.orchestrator.server.access.refusals import refuse

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})


class PublicWithoutKeys(Exception):
    """The service would listen where other machines reach it, and nobody could have a key."""


def check_bind(host: str, *, can_authenticate: bool) -> None:
    """Check that the service may listen on an address.

    On the loopback it may without keys: nobody is let in before a login link or a key is made.

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
    """Refuses requests for a name that is not ours (421).

    A site can let its own name lead to 127.0.0.1, and so make a browser call services of this
    machine as if they were its own (DNS rebinding); the header Host still has that site's name.

    Args:
        app: The application.
        settings: Where the service listens, and its names.
    """

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        given = {urlsplit(settings.public_url or "").hostname, *settings.trusted_hosts} - {None}
        self._is_local = is_loopback(settings.host)
        self._names = {_bare(str(name)) for name in (*LOOPBACK_NAMES, settings.host, *given)}
        self._accepts_all = not self._is_local and not given
        """Reached by other machines under names that nobody told us: keys protect it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request for one of our names."""
        if scope["type"] == "lifespan" or self._accepts(scope):
            await self._app(scope, receive, send)
            return
        await refuse(
            *(scope, receive, send),
            status=421,
            detail="This service does not have the name that the header Host gives; "
            "FANOUT_API__TRUSTED_HOSTS adds names.",
        )

    def _accepts(self, scope: Scope) -> bool:
        if self._accepts_all:
            return True
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1:
            return False
        name = _name_of(hosts[0].decode("latin-1"))
        return name in self._names or (not self._is_local and _is_address(name))


def _name_of(host: str) -> str:
    """Return the name in a header Host, without a port; empty when it is none."""
    try:
        return _bare(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return ""


def _bare(name: str) -> str:
    return name.strip("[]").rstrip(".").lower()


def _is_address(name: str) -> bool:
    """Return whether a name is an address, which no site can let lead to somewhere else."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
