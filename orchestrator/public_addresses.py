"""Hosts as texts, and which addresses are on the public internet.

Connections on behalf of untrusted callers are only allowed to such addresses.
"""

from __future__ import annotations

import ipaddress
import re

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_LABEL = r"(?!-)[a-z0-9_-]{1,63}(?<!-)"
_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_MAX_PORT = 65535
"""The largest TCP port."""

_SPECIAL_V4 = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
        "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
        "168.63.129.16/32",  # public by its number, and a cloud's metadata by its use
    )
)  # fmt: skip
"""IANA's special-purpose addresses, and multicast."""

_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
"""Addresses outside of it are not on the internet: loopback, link-local, unique local, mapped IPv4,
multicast."""
_SPECIAL_V6 = tuple(
    ipaddress.IPv6Network(network)
    for network in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)
"""Addresses that are excluded from it, because tunnels would lead to any IPv4 address."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""IPv4 addresses in the form of a network that supports only IPv6."""


def is_public(address: Address | str) -> bool:
    """Return whether an address is on the internet and not on a private network.

    Raises:
        ValueError: The text is no address.
    """
    if isinstance(address, str):
        address = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address in _NAT64:
        address = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _SPECIAL_V4)
    return address in _GLOBAL_V6 and not any(address in network for network in _SPECIAL_V6)


def split_authority(text: str) -> tuple[str, int | None] | None:
    """Split `host`, `host:port` or `[address]:port`; None when it has not this form (RFC 3986).

    Users, zones and percent-encoded parts are not accepted. Whether the host is a name or an
    address is not checked.
    """
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        return None
    port = int(match["port"]) if match["port"] else None
    return None if port is not None and not 0 < port <= _MAX_PORT else (match["host"], port)


def parse_authority(text: str) -> tuple[str | Address, int | None] | None:
    """Parse `host`, `host:port` or `[address]:port` into host and port; None when it is neither.

    A name is returned in lower case without a final dot. Numbers that some programs accept as
    addresses, such as 2130706433 or 0x7f.1, are rejected.
    """
    parts = split_authority(text)
    host = parts and parse_host(parts[0])
    return (host, parts[1]) if parts and host else None


def ascii_name(text: str) -> str:
    """Return an international name as resolvers and browsers send it; anything else unchanged."""
    try:
        return text if text.isascii() else text.encode("idna").decode()
    except UnicodeError:
        return text


def parse_host(text: str) -> str | Address | None:
    """Return an address, or a name in lower case; None when it is neither."""
    if text.startswith("["):
        return parse_address(text[1:-1])
    name = text.lower().removesuffix(".")
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        return parse_address(text)
    return name if _NAME.fullmatch(name) else None


def parse_address(text: str) -> Address | None:
    """Return an address in its usual form, without a zone; None when the text is none."""
    try:
        # a list cannot name a zone
        return None if "%" in text else ipaddress.ip_address(text)
    except ValueError:
        return None
