"""The names of hosts that a job may ask for, and which of two lists of them both permit.

An entry is a DNS name (`example.org`) or all names below one (`*.example.org`), with `:port` where
it is not 80 or 443. What the entries lead to is checked where connections are made
(`workers/sandbox/egress`); here nothing is resolved.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

Network = Literal["none"] | tuple[str, ...]
"""`none`, or the names of hosts."""

WITHOUT_PORT = ("80", "443")
"""The ports that an entry without a port permits."""

_LABEL = r"(?!-)[a-z0-9_-]{1,63}(?<!-)"
_ENTRY = re.compile(
    rf"(?P<wildcard>\*\.)?(?P<name>(?=.{{1,253}}(?::|$)){_LABEL}(?:\.{_LABEL})+)(?::(?P<port>\d{{1,5}}))?"
)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""The last part of a name that programs read as an address: 127.1, 0x7f.0.0.1, 017700000001."""

_LOCAL_ENDS = (
    *("localhost", "localdomain", "local", "internal", "intranet", "lan", "home", "corp"),
    *("private", "home.arpa", "ip6.arpa", "in-addr.arpa"),
)
"""The endings of names for the machine, its network or its cloud, none of which are on the
internet."""

_METADATA = ("metadata", "instance-data")
"""The first parts of the names under which clouds provide keys to a machine."""


def why_not_public(entry: str) -> str | None:
    """Return why an entry names no host of the internet; None if it does."""
    match = _ENTRY.fullmatch(_ascii(entry.lower().removesuffix(".")))
    if match is None or not 0 < int(match["port"] or 1) <= 65535:  # noqa: PLR2004 - TCP's last port
        return "it is not a DNS name with a dot, such as example.org or *.example.org:8443"
    name = match["name"]
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        return "it is an address and not a name"
    if name.partition(".")[0] in _METADATA:
        return "it is a cloud's metadata service"
    if name.endswith(tuple(f".{end}" for end in _LOCAL_ENDS)) or name in _LOCAL_ENDS:
        return "it is a name of a local network"
    return None


def common(asked: Network | None, most: Network | None) -> Network | None:
    """Return what both lists permit; None permits everything.

    Args:
        asked: The hosts that are asked for.
        most: The hosts that may be given.
    """
    if asked is None or most is None:
        return most if asked is None else asked
    if asked == "none" or most == "none":
        return "none"
    narrower = [entry for entry in asked if is_covered(entry, most)]
    wider = [entry for entry in most if is_covered(entry, asked)]
    return tuple(dict.fromkeys([*narrower, *wider])) or "none"


def is_covered(entry: str, by: Sequence[str]) -> bool:
    """Return whether one of some entries permits all that an entry does."""
    return any(_covers(other, entry) for other in by)


def _covers(wide: str, narrow: str) -> bool:
    wide, narrow = (_ascii(entry.lower()) for entry in (wide, narrow))
    if wide == narrow:
        return True
    permitted, asked = _ENTRY.fullmatch(wide), _ENTRY.fullmatch(narrow)
    if permitted is None or asked is None:
        return False  # such as an address in brackets: it permits itself only
    if permitted["wildcard"]:
        names = f".{asked['name']}" if asked["wildcard"] else asked["name"]
        is_within = names.endswith(f".{permitted['name']}")
    else:
        is_within = not asked["wildcard"] and asked["name"] == permitted["name"]
    is_port = permitted["port"] or asked["port"] not in {None, *WITHOUT_PORT}
    return is_within and (not is_port or permitted["port"] == asked["port"])


def _ascii(text: str) -> str:
    """Return an international name as the resolver knows it; anything else unchanged."""
    try:
        return text if text.isascii() else text.encode("idna").decode()
    except UnicodeError:
        return text
