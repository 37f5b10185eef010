"""Heartbeats: one loop renews the leases of all jobs that this worker runs.

A lease that could not be renewed for 80 % of its length counts as lost here, before it lapses
there: an attempt stops by itself before another can begin. `HeldLease.check` is that fence; it
stands before every model call, every tool call and the commit, because a process that was paused (a
stopped VM, a closed lid) goes on in the middle of whatever it was doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterator

import structlog

from orchestrator.jobs.failures import JobCancelled, JobFailure, LeaseLost, LedgerUnavailable
from orchestrator.jobs.store.ledger import Claim, Ledger

log = structlog.get_logger(__name__)

BEATS_PER_LEASE = 4
FENCE = 0.8
"""The share of a lease after which an attempt stops by itself: the rest is for clocks and
pauses."""
MISSED_SECONDS = 5.0
"""A cancel may be heard before the answer to the claim that it means, which is not on its way for
longer."""
LOOKS_PER_LEASE = 20
"""How often the fence is looked at: an attempt stops 5 % of its lease later at most, before the
lapse."""


def elapsed_clock() -> float:
    """Seconds on a clock that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class HeldLease:
    """The lease of one running attempt."""

    def __init__(
        self, claim: Claim, lease_seconds: float, stop: Callable[[JobFailure], None]
    ) -> None:
        self.claim = claim
        self.stop = stop
        """Ends the attempt, for the reason given."""
        self._fence_seconds = lease_seconds * FENCE
        self._renewed = elapsed_clock()

    @property
    def is_held(self) -> bool:
        """Whether the attempt may still act."""
        return elapsed_clock() - self._renewed < self._fence_seconds

    def check(self) -> None:
        """Before a side effect.

        Raises:
            LeaseLost: the last renewal is too long ago, another attempt may begin.
        """
        if not self.is_held:
            raise LeaseLost("The lease was not renewed in time, so this attempt stops.")

    def renewed(self, asked_at: float) -> None:
        """The ledger has renewed the lease; it counts from when it was asked."""
        self._renewed = asked_at


class Heartbeats:
    """Renews all leases of a worker."""

    def __init__(self, ledger: Ledger, lease_seconds: float) -> None:
        self._ledger = ledger
        self._lease_seconds = lease_seconds
        self._held: dict[str, HeldLease] = {}
        self._soon = asyncio.Event()
        self._missed: dict[str, tuple[float, JobFailure]] = {}
        """What was to stop while nothing of it ran here."""

    def __len__(self) -> int:
        """How many jobs this worker runs."""
        return len(self._held)

    @property
    def claims(self) -> list[Claim]:
        """What this worker runs; also for other threads."""
        return [lease.claim for lease in list(self._held.values())]

    @contextlib.contextmanager
    def holding(self, claim: Claim, stop: Callable[[JobFailure], None]) -> Iterator[HeldLease]:
        """Keep a claim's lease renewed."""
        lease = HeldLease(claim, self._lease_seconds, stop)
        self._held[claim.spec.id] = lease
        missed_at, reason = self._missed.pop(claim.spec.id, (-math.inf, None))
        if reason is not None and elapsed_clock() - missed_at < MISSED_SECONDS:
            asyncio.get_running_loop().call_soon(
                self.stop, claim.spec.id, reason
            )  # when it has begun
        try:
            yield lease
        finally:
            if self._held.get(claim.spec.id) is lease:
                del self._held[claim.spec.id]

    def stop(self, job_id: str, reason: JobFailure) -> None:
        """End the attempt of a job, if this worker runs it or is just about to."""
        lease = self._held.get(job_id)
        if lease is not None:
            lease.stop(reason)
            self.beat_soon()
            return
        now = elapsed_clock()
        self._missed[job_id] = now, reason
        for other in [id_ for id_, (at, _) in self._missed.items() if now - at >= MISSED_SECONDS]:
            del self._missed[other]

    def beat_soon(self) -> None:
        """Beat now rather than at the next turn.

        Somebody may wait to hear that we know of a cancel.
        """
        self._soon.set()

    def stop_all(self, reason: JobFailure) -> None:
        """End every attempt."""
        for lease in list(self._held.values()):
            lease.stop(reason)

    async def run(self) -> None:
        """Beat for ever, and stop what lies behind the fence, also while a beat hangs."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._renew())
            group.create_task(self._fence())

    async def _renew(self) -> None:
        while True:
            self._soon.clear()
            await self._beat()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._lease_seconds / BEATS_PER_LEASE):
                    await self._soon.wait()

    async def _fence(self) -> None:
        while True:
            for lease in list(self._held.values()):
                if not lease.is_held:
                    lease.stop(
                        LeaseLost("The lease was not renewed in time, so this attempt stops.")
                    )
            await asyncio.sleep(self._lease_seconds / LOOKS_PER_LEASE)

    async def _beat(self) -> None:
        held = dict(self._held)
        if not held:
            return
        asked_at = elapsed_clock()
        answers: dict[str, str] = {}
        try:
            tokens = {job_id: lease.claim.token for job_id, lease in held.items()}
            answers = await self._ledger.beat(tokens, self._lease_seconds)
        except LedgerUnavailable as error:
            log.warning("heartbeat failed", error=str(error), jobs=len(held))
        for job_id, lease in held.items():
            match answers.get(job_id):
                case "held":
                    lease.renewed(asked_at)
                case "cancel":
                    lease.renewed(asked_at)
                    lease.stop(JobCancelled("The job was cancelled."))
                case "lost":
                    lease.stop(LeaseLost("Another attempt holds the job."))
