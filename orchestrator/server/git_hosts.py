"""Which hosts Git repositories are cloned from: strangers name them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection

from fanout.orchestrator.public_addresses import is_public, parse_host
from fanout.orchestrator.workspace.exchange.cloned import HTTPS_PORT

Resolve = Callable[[str, int], Collection[str]]


class GitHosts:
    """Finds the addresses of a host that may be connected to; Git connects to these only.

    Args:
        allowed: Hosts, or `host:port`, that may have any address and any port
            (FANOUT_API__GIT_HOSTS).
        resolve: Finds the addresses of a host.
    """

    def __init__(self, allowed: Collection[str] = (), resolve: Resolve | None = None) -> None:
        self._allowed = frozenset(allowed)
        self._resolve = resolve or _look_up

    def __call__(self, host: str, port: int) -> list[str]:
        """Return the addresses; blocks.

        Raises:
            ValueError: There are none, or they may not be connected to; the text says what to do.
        """
        if parse_host(f"[{host}]" if ":" in host else host) is None:
            raise ValueError("The host of the repository is a name, or an address as usual.")
        is_allowed = host in self._allowed or f"{host}:{port}" in self._allowed
        if port != HTTPS_PORT and not is_allowed:
            raise ValueError("The port of the repository is 443 (FANOUT_API__GIT_HOSTS).")
        try:
            found = list(dict.fromkeys(self._resolve(host, port)))
        except (OSError, UnicodeError):
            found = []
        if not found:
            raise ValueError("The host of the repository is not found.")
        if not is_allowed and not all(map(is_public, found)):
            raise ValueError(
                "The host of the repository is not on the public internet: only an operator can "
                "allow it (FANOUT_API__GIT_HOSTS)."
            )
        return found


def _look_up(host: str, port: int) -> list[str]:
    return [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
