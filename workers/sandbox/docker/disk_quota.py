"""What bounds the disk usage of jobs: a quota of each, and a reserve of free space."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from fanout.orchestrator.jobs.failures import SandboxFailure

QUOTA_SETTING = "FANOUT_SANDBOX__DISK_QUOTA"
RESERVE_SETTING = "FANOUT_SANDBOX__DISK_RESERVE_BYTES"

RESERVE_BYTES = 2 * 1024**3
"""The free space that an engine's disk keeps: the engine itself, Redis and logs go on with it."""

WATCH_SECONDS = 2.0
"""Between two measurements of the jobs' disk usage: in that time a disk writes a few GB at most."""
_LEAST_SECONDS = 0.02
"""Between two looks at the free space, which take 1 ms each."""
_BYTES_PER_SECOND = 8 * 1024**3
"""Faster than disks of today: the free space is looked at again before it can be used up."""
STOP_BYTES = 512 * 1024**2
"""A job is stopped so much above the reserve: what a disk takes in while its container, and the
data that the kernel still holds for it, come to an end. No sandbox is opened below, either."""
_NOTICED_BYTES = 8 * 1024**2
"""A job that took less in two seconds is not the one that fills the disk."""

QuotaKind = Literal["image", "watch"]


@dataclass(frozen=True)
class DiskQuota:
    """What keeps the disk limits of the jobs of a worker."""

    kind: QuotaKind
    """`image`: a file system for each job, whose size the kernel keeps. `watch`: the usage is
    measured every two seconds; a job can take more in between, and unnoticed by files that it
    deletes while they are open."""
    reason: str
    """Why it is this one."""


@dataclass(frozen=True, kw_only=True)
class DiskSettings:
    """How the disk usage of jobs is bounded."""

    quota: Literal["auto", "image", "watch"] = "auto"
    """`auto` is `image` where the engine lets a steward mount, else `watch`; `image` refuses to
    work without."""
    reserve_bytes: int = RESERVE_BYTES


class WatchedSandbox(Protocol):
    """What is stopped when it takes too much."""

    @property
    def job_id(self) -> str:
        """Its job."""

    async def stop_if_over_limit(self, used_bytes: int) -> None:
        """Stop it if that is more than its limit, and nothing else keeps the limit."""

    async def stop_for_reserve(self, free_bytes: int, reserve_bytes: int) -> None:
        """Stop it, since it takes the disk's last space."""


class DiskMeter(Protocol):
    """A steward's measurements."""

    async def measure(self, jobs: list[str]) -> dict[str, int]:
        """Return how many bytes of the engine's disk each of these jobs has taken."""

    async def free_bytes(self) -> int:
        """Return the free space of the engine's disk."""


class DiskWatch:
    """Stops sandboxes that take too much, while any is open."""

    def __init__(
        self,
        meter: Callable[[], Awaitable[DiskMeter]],
        sandboxes: Callable[[], Iterable[WatchedSandbox]],
        reserve_bytes: int,
    ) -> None:
        self._meter, self._sandboxes, self._reserve_bytes = meter, sandboxes, reserve_bytes
        self._used: dict[str, int] = {}
        self._since_measured = 0.0

    async def run(self) -> None:
        """Watch until no sandbox is open."""
        while list(self._sandboxes()):
            wait_seconds = WATCH_SECONDS
            with contextlib.suppress(SandboxFailure):  # the next round has another steward
                wait_seconds = await self._check()
            await asyncio.sleep(wait_seconds)
            self._since_measured += wait_seconds

    async def _check(self) -> float:
        """Look once; return how long the disk cannot become full."""
        meter = await self._meter()
        free = await meter.free_bytes()
        left = free - self._reserve_bytes - STOP_BYTES
        if left < 0:
            await self._stop_greediest(meter, free)
        elif self._since_measured >= WATCH_SECONDS:
            self._used, self._since_measured = await self._measure(meter), 0.0
        return min(WATCH_SECONDS, max(_LEAST_SECONDS, left / _BYTES_PER_SECOND))

    async def _measure(self, meter: DiskMeter) -> dict[str, int]:
        """Return what each job has taken; stop jobs that exceed their limit."""
        watched = list(self._sandboxes())
        used = await meter.measure([sandbox.job_id for sandbox in watched])
        for sandbox in watched:
            await sandbox.stop_if_over_limit(used.get(sandbox.job_id, 0))
        return used

    async def _stop_greediest(self, meter: DiskMeter, free: int) -> None:
        """Stop the job that took most in the last seconds; the next round stops another."""
        used = await self._measure(meter)
        grown = {job: size - self._used.get(job, 0) for job, size in used.items()}
        greediest = max(grown, key=lambda job: grown[job], default=None)
        if greediest is None or grown[greediest] < _NOTICED_BYTES:
            return  # somebody else fills the disk: no sandbox is opened, and none is stopped
        for sandbox in list(self._sandboxes()):
            if sandbox.job_id == greediest:
                await sandbox.stop_for_reserve(free, self._reserve_bytes)
