"""Heartbeats: one loop renews the leases of all jobs that this worker runs.

A lease that could not be renewed for 80 % of its length counts as lost for the worker before it
lapses in the ledger, so an attempt stops before another can start. `HeldLease.check` is this fence.
It is called before every model call, every tool call and the commit, because a process that was
paused (a stopped VM, a closed lid) continues in the middle of its work.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterator

import structlog

from fanout.orchestrator.jobs.failures import (
    JobCancelled,
    JobFailure,
    LeaseLost,
    LeaseNotRenewed,
    LedgerUnavailable,
)
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger

log = structlog.get_logger(__name__)

BEATS_PER_LEASE = 4
FENCE = 0.8
"""The share of a lease after which an attempt stops: the rest allows for clocks and
pauses."""
PENDING_STOP_SECONDS = 5.0
"""How long a request to stop a job is kept that this worker does not run: it may arrive before the
answer to the claim of the job, which takes no longer."""
LOOKS_PER_LEASE = 20
"""How often leases are checked: an attempt stops at most 5 % of its lease after the fence, which is
before the lapse."""


class ShuttingDown(JobFailure):
    """The worker stops; its jobs are released without using up an attempt."""


def elapsed_clock() -> float:
    """Return seconds on a clock that also runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class HeldLease:
    """The lease of one running attempt.

    Args:
        claim: The attempt.
        lease_seconds: The length of the lease.
        stop: Stops the attempt, for the reason given.
    """

    def __init__(
        self, claim: Claim, lease_seconds: float, stop: Callable[[JobFailure], None]
    ) -> None:
        self.claim = claim
        self.stop = stop
        self._fence_seconds = lease_seconds * FENCE
        self._renewed = elapsed_clock()
        self.is_cancelled = False
        """Whether the ledger has said that the job is cancelled."""

    @property
    def is_held(self) -> bool:
        """Whether the attempt may still act."""
        return elapsed_clock() - self._renewed < self._fence_seconds

    def check(self) -> None:
        """Check the lease before a side effect.

        Raises:
            LeaseNotRenewed: The last renewal is too long ago; another attempt may start.
        """
        if not self.is_held:
            raise LeaseNotRenewed("The lease was not renewed in time, so this attempt stops.")

    def mark_renewed(self, asked_at: float) -> None:
        """Record a renewal by the ledger.

        Args:
            asked_at: When the ledger was asked; the renewed lease counts from then.
        """
        self._renewed = asked_at


class Heartbeats:
    """Renews all leases of a worker.

    Args:
        ledger: Renews the leases.
        lease_seconds: The length of a lease.
    """

    def __init__(self, ledger: Ledger, lease_seconds: float) -> None:
        self._ledger = ledger
        self._lease_seconds = lease_seconds
        self._held: dict[str, HeldLease] = {}
        self._renew_now = asyncio.Event()
        self._pending_stops: dict[str, tuple[float, JobFailure]] = {}
        """Requests to stop jobs that this worker does not run, by job id, with their time."""

    def __len__(self) -> int:
        """Return the number of jobs that this worker runs."""
        return len(self._held)

    @property
    def claims(self) -> list[Claim]:
        """The attempts that this worker runs; may be read from other threads."""
        return [lease.claim for lease in list(self._held.values())]

    @contextlib.contextmanager
    def hold(self, claim: Claim, stop: Callable[[JobFailure], None]) -> Iterator[HeldLease]:
        """Renew a claim's lease until the context is left.

        Args:
            claim: The attempt.
            stop: Stops the attempt, for the reason given.
        """
        lease = HeldLease(claim, self._lease_seconds, stop)
        self._held[claim.spec.id] = lease
        missed_at, reason = self._pending_stops.pop(claim.spec.id, (-math.inf, None))
        if reason is not None and elapsed_clock() - missed_at < PENDING_STOP_SECONDS:
            # Not at once: the attempt cannot be stopped before it has started.
            asyncio.get_running_loop().call_soon(self.stop, claim.spec.id, reason)
        try:
            yield lease
        finally:
            if self._held.get(claim.spec.id) is lease:
                del self._held[claim.spec.id]

    def stop(self, job_id: str, reason: JobFailure) -> None:
        """Stop the attempt of a job, if this worker runs it or is about to run it.

        Args:
            job_id: The job.
            reason: Why it is stopped.
        """
        lease = self._held.get(job_id)
        if lease is not None:
            lease.stop(reason)
            self.renew_now()
            return
        now = elapsed_clock()
        self._pending_stops[job_id] = now, reason
        for other in [
            id_ for id_, (at, _) in self._pending_stops.items() if now - at >= PENDING_STOP_SECONDS
        ]:
            del self._pending_stops[other]

    def renew_now(self) -> None:
        """Renew all leases at once, so that this worker hears of cancels and confirms them."""
        self._renew_now.set()

    def stop_all(self, reason: JobFailure) -> None:
        """Stop all attempts.

        Args:
            reason: Why they are stopped.
        """
        for lease in list(self._held.values()):
            lease.stop(reason)

    async def run(self) -> None:
        """Renew the leases until cancelled, and stop attempts behind the fence.

        The fence also works while a renewal hangs.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._renew())
            group.create_task(self._fence())

    async def _renew(self) -> None:
        while True:
            self._renew_now.clear()
            await self._beat()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._lease_seconds / BEATS_PER_LEASE):
                    await self._renew_now.wait()

    async def _fence(self) -> None:
        while True:
            for lease in list(self._held.values()):
                try:
                    lease.check()
                except LeaseNotRenewed as failure:
                    lease.stop(failure)
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
                    lease.mark_renewed(asked_at)
                case "cancel":
                    lease.mark_renewed(asked_at)
                    lease.stop(JobCancelled("Cancelled."))
                    if not lease.is_cancelled:
                        self.renew_now()  # the next renewal confirms it
                    lease.is_cancelled = True
                case "lost":
                    lease.stop(LeaseLost("Another attempt holds the job."))
