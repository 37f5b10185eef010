"""The most that any job of an installation may have, whoever asks for it.

A client refuses a job that asks for more before it is stored. The worker is the authority: the
specification in Redis may come from anybody.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .failures import LimitExceeded
from .network_names import common, is_covered, why_not_public
from .spec import GIB, Limits, WireModel

DAY_SECONDS = 24 * 3600
"""The longest time of a job: an agent that needs more makes no progress."""


class Ceilings(WireModel):
    """The largest values of a job's limits; a limit that nobody sets is its ceiling."""

    timeout_seconds: float = Field(default=DAY_SECONDS, gt=0)
    """Wall-clock time, summed over all attempts: a day."""
    max_model_calls: int = Field(default=10_000, gt=0)
    """Fifty times the default, which is ample for one agent."""
    max_tokens: int = Field(default=100_000_000, gt=0)
    """Ten thousand tokens for each of the most model calls."""
    max_cost_usd: float = Field(default=1000, gt=0)
    """A job that costs more is a mistake, or needs an operator's permission."""
    max_tool_calls: int = Field(default=100_000, gt=0)
    """Ten for each of the most model calls."""
    max_wait_seconds: float = Field(default=7 * DAY_SECONDS, gt=0)
    """The wait for a model: a quota of a week is filled up by then."""
    max_calls: int = Field(default=10_000, gt=0)
    """Jobs of one script: what a script of ten thousand files needs."""
    cpus: float = Field(default=16, gt=0)
    """The cores of a usual host."""
    memory_bytes: int = Field(default=16 * GIB, ge=64 * 1024**2)
    """The memory of a usual host."""
    pids: int = Field(default=4096, ge=16)
    """An eighth of the processes that a kernel has by default."""
    disk_bytes: int = Field(default=64 * GIB, ge=1024**2)
    """Part of a usual host's disk."""
    network_bytes: int = Field(default=64 * GIB, ge=1024)
    """The same amount as a job's disk can hold."""
    network: Literal["none"] | tuple[str, ...] | None = None
    """The hosts that definitions may name and that the operator's own jobs may ask for, also
    addresses; unset: definitions may name any DNS name of the internet, and jobs ask for no other
    hosts."""

    def check(self, limits: Limits) -> None:
        """Refuse limits above the ceilings.

        Args:
            limits: What a job and its agent ask for.

        Raises:
            LimitExceeded: The text names the limit, the asked value and the largest one.
        """
        for name, asked in limits:
            if asked is None or name == "network":
                continue
            ceiling = getattr(self, name)
            if not asked <= ceiling:
                raise LimitExceeded(
                    f"limits.{name} asks for {asked:,}, and this installation gives a job "
                    f"{ceiling:,} at the most (FANOUT_CEILINGS__{name.upper()}): ask for less."
                )
        if limits.network is not None and limits.network != "none":
            for host in limits.network:
                self._check_host(host)

    def within(self, limits: Limits) -> Limits:
        """Return the limits; an unset value, and one above its ceiling, becomes the ceiling."""
        numbers = {
            name: ceiling if getattr(limits, name) is None else min(getattr(limits, name), ceiling)
            for name, ceiling in self._numbers().items()
        }
        network = None if limits.network is None else common(limits.network, self.network)
        return limits.model_copy(update={**numbers, "network": network})

    def _numbers(self) -> dict[str, float]:
        return {name: value for name, value in self if name != "network"}

    def _check_host(self, host: str) -> None:
        if self.network is None:
            reason = why_not_public(host)
        elif self.network != "none" and is_covered(host, self.network):
            reason = None
        else:
            reason = "this installation does not permit it"
        if reason is not None:
            raise LimitExceeded(
                f"limits.network asks for {host[:300]!r}, and no job may reach that, because "
                f"{reason}; FANOUT_CEILINGS__NETWORK lists the hosts that jobs may reach."
            )


def no_more_than(limits: Limits, most: Limits) -> Limits:
    """Return the limits, with no resource above that of another job, the parent.

    Args:
        limits: What the job asks for.
        most: What its parent has.
    """
    found = {}
    for name in ("cpus", "memory_bytes", "pids", "disk_bytes", "network_bytes"):
        values = [value for value in (getattr(limits, name), getattr(most, name)) if value]
        found[name] = min(values, default=None)
    network = common(limits.network, most.network)
    return limits.model_copy(update={**found, "network": network})
