"""What a sandbox reports of the connections to the hosts that its job may reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


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
