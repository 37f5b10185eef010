"""How much of its memory Redis uses, and what to do when little is left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..policy import StorageShares

MIB = 1024**2
ADVICE = (
    "raise its maxmemory, or keep jobs for a shorter time (FANOUT_RETENTION_SECONDS, "
    "FANOUT_STORAGE__MAX_BYTES)"
)


@dataclass(frozen=True)
class RedisMemory:
    """The memory of a Redis, as `INFO memory` reports it; a managed one answers that too."""

    used_bytes: int
    """The memory that counts towards the limit."""
    limit_bytes: int
    """`maxmemory`; 0: none is set, and the system ends Redis when the machine has no more."""
    machine_bytes: int
    """The memory of the machine, or 0 if Redis does not report it."""
    marks: StorageShares

    @property
    def share(self) -> float:
        """The part of its limit that Redis uses; 0 without a limit."""
        return self.used_bytes / self.limit_bytes if self.limit_bytes else 0.0

    @property
    def is_short(self) -> bool:
        """Whether little is left, and people are warned."""
        return bool(self.limit_bytes) and self.share >= self.marks.warn_at

    @property
    def warning(self) -> str:
        """What to do while little memory is left, in one sentence; empty while enough is."""
        if not self.is_short:
            return ""
        return (
            f"Redis holds {self.share:.0%} of its limit of {self.limit_bytes / MIB:,.0f} MiB, and "
            f"refuses new jobs from {self.marks.refuse_at:.0%} on: {ADVICE}."
        ).replace("%", " %")


def redis_memory(info: Mapping[str, Any], marks: StorageShares | None = None) -> RedisMemory:
    """Return what the answer to `INFO memory` says.

    Args:
        info: The answer; a field that is missing is 0.
        marks: Those of the installation; None: the defaults.
    """

    def number(name: str) -> int:
        return int(info.get(name) or 0)

    return RedisMemory(
        used_bytes=max(number("used_memory") - number("mem_not_counted_for_evict"), 0),
        limit_bytes=number("maxmemory"),
        machine_bytes=number("total_system_memory"),
        marks=marks or StorageShares(),
    )
