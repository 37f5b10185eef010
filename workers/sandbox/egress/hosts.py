"""The hosts that a job's commands may reach: its limit `network`, and what no list can permit.

An entry of the list is one of

    name                  example.org: this name and no other, on the ports 80 and 443
    names below one       *.example.org: any name with this ending, at any depth, but not
                          example.org itself
    address               192.0.2.7 or 2001:db8::7 (or [2001:db8::7]): for requests to this address
    any of them and port  example.org:8443, [2001:db8::7]:8443: this port only

A name permits the addresses to which it resolves. Those of private, local and other special
networks are refused, unless the list names the address itself, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.public_addresses import (
    Address,
    ascii_name,
    is_public,
    parse_address,
    parse_authority,
)

DEFAULT_PORTS = frozenset({80, 443})


@dataclass(frozen=True)
class _Entry:
    """An entry of the list."""

    host: str | Address
    """Of a wildcard, the required ending of the name with its dot."""
    ports: frozenset[int]

    def covers(self, host: str | Address, port: int) -> bool:
        if port not in self.ports:
            return False
        is_below = isinstance(self.host, str) and self.host.startswith(".")
        if is_below and isinstance(host, str):
            return host.endswith(str(self.host))
        return host == self.host


class AllowedHosts:
    """The hosts that one job may reach."""

    def __init__(self, entries: Sequence[str]) -> None:
        """Parse the entries of a list.

        Raises:
            InvalidJob: an entry is malformed; the message quotes it.
        """
        self.entries = tuple(entries)
        self._entries = tuple(_parse_entry(entry) for entry in entries)

    def names(self, host: str | Address, port: int) -> bool:
        """Return whether a request for this host may be tried."""
        return any(entry.covers(host, port) for entry in self._entries)

    def admits(self, address: Address, port: int) -> bool:
        """Return whether a connection to this address is permitted, whatever its name."""
        return is_public(address) or self.names(address, port)


def _parse_entry(text: str) -> _Entry:
    wildcard = text.startswith("*.")
    parsed = parse_authority(ascii_name(text.removeprefix("*.")))
    if bare := parse_address(text):  # IPv6 without brackets
        parsed = (bare, None)
    if parsed is None or (wildcard and (not isinstance(parsed[0], str) or "." not in parsed[0])):
        raise InvalidJob(
            f"The limit `network` names {text[:300]!r}, which is no host. An entry is a name "
            "(example.org), the names below one (*.example.org) or an address, each with :port "
            "where it is not 80 or 443."
        )
    host, port = parsed
    return _Entry(f".{host}" if wildcard else host, frozenset({port}) if port else DEFAULT_PORTS)
