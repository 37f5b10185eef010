"""The connections of a sandbox: the credentials put into them, and what is reported of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import SecretStr


@dataclass(frozen=True, kw_only=True)
class Credential:
    """A header that the proxy puts into the requests to one host, outside of the sandbox."""

    host: str
    port: int
    secret: str
    """The secret's name, for reports."""
    header: str
    value: SecretStr
    """The header's whole value."""
    hidden: tuple[SecretStr, ...]
    """The texts that a response must not carry into the sandbox: the secret in its spellings."""
    methods: tuple[str, ...] | None = None
    """The permitted methods; None: all."""
    paths: tuple[str, ...] | None = None
    """The permitted paths, `*` standing for any characters; None: all."""


@dataclass(frozen=True, kw_only=True)
class ConnectionRecord:
    """A connection that has ended, or one that was refused. It contains no path and no header."""

    host: str
    """Empty when the request named none."""
    port: int
    is_allowed: bool
    reason: str = ""
    """Why it was refused or cut; empty for one that ended by itself."""
    sent_bytes: int = 0
    """To the host."""
    received_bytes: int = 0
    seconds: float = 0.0
    secret: str = ""
    """The name of the secret that the proxy put into its requests; empty for none."""


@dataclass(frozen=True, kw_only=True)
class NetworkLimitReached:
    """The job has used its budget of bytes; reported once."""

    limit_bytes: int
    used_bytes: int


TrafficRecord = ConnectionRecord | NetworkLimitReached
OnTraffic = Callable[[TrafficRecord], None]
"""Receives the records of a sandbox; must not wait or raise."""


def ignore_traffic(_record: TrafficRecord) -> None:
    """Drop a record."""
