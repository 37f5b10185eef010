"""A running attempt, its deadline, and the means to stop it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from typing import Any

from fanout.orchestrator.cancellation import CANCEL_AGAIN_SECONDS
from fanout.orchestrator.configuration.agent_definitions import AgentDefinition
from fanout.orchestrator.jobs.failures import (
    JobCancelled,
    JobFailure,
    LedgerUnavailable,
    out_of_time,
)
from fanout.orchestrator.jobs.spec import Limits
from fanout.orchestrator.jobs.store.ledger import Claim
from fanout.workers.attempt.outcome import Outcome
from fanout.workers.heartbeat import elapsed_clock
from fanout.workers.sandbox import HostFault, LazySandbox


class Attempt:
    """One running attempt, which can be stopped from outside.

    Args:
        claim: The job, and the right to run it.
        definition: The definition of its agent.
        limits: The job's limits, with every field set that a sandbox needs.
        claimed_at: When the claim was sent, on `elapsed_clock`.
        turns: Held while one attempt of this worker begins to stop. When a thousand are stopped at
            once, each unwinds in steps of the loop of its own, not all of them in the same one.

    Raises:
        ValueError: The limits have no `timeout_seconds`.
    """

    def __init__(
        self,
        claim: Claim,
        definition: AgentDefinition,
        limits: Limits,
        claimed_at: float,
        turns: asyncio.Lock,
    ) -> None:
        if limits.timeout_seconds is None:
            raise ValueError("the defaults leave timeout_seconds unset")
        self.claim = claim
        self.definition = definition
        self.limits = limits
        self.timeout_seconds = limits.timeout_seconds
        self.left_seconds = max(limits.timeout_seconds - claim.ran_seconds, 0)
        """What is left of the job's time after earlier attempts."""
        self.ends_at = claimed_at + limits.timeout_seconds - claim.ran_seconds
        """When the job's time is over, on `elapsed_clock`."""
        self.stopped_by: JobFailure | None = None
        """Why the attempt was stopped; the first reason counts."""
        self.stopped_at: float | None = None
        """When that was, on `elapsed_clock`."""
        self.sandbox: LazySandbox | None = None
        """Its sandbox, once something may open it."""
        self._turns = turns
        self._acknowledged = False
        self._work: asyncio.Task[Outcome] | None = None
        self._stopping: asyncio.Task[None] | None = None

    @property
    def is_first(self) -> bool:
        """Whether no earlier attempt of the job is known to the ledger."""
        return self.claim.attempt == 1 and not self.claim.ran_seconds

    @property
    def has_sandbox(self) -> bool:
        """Whether its sandbox was opened."""
        return self.sandbox is not None and self.sandbox.is_open

    @property
    def opens_sandbox(self) -> bool:
        """Whether it waits for its sandbox."""
        return self.sandbox is not None and self.sandbox.is_wanted and not self.sandbox.is_open

    async def run(self, work: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Run the attempt's work in its own task, which `stop` can cancel at any time."""
        self._work = asyncio.create_task(work)
        try:
            return await self._work
        except asyncio.CancelledError:  # the work had not started
            return Outcome(failure=self.acknowledge())
        finally:
            if self._stopping is not None:
                self._stopping.cancel()
            self._work = self._stopping = None  # their errors refer to this attempt

    def stop(self, reason: JobFailure) -> None:
        """Stop the attempt, unless it is being stopped already.

        Args:
            reason: Becomes `stopped_by`.
        """
        if self.stopped_by is None and self._work is not None:
            self.stopped_by = reason
            self.stopped_at = elapsed_clock()
            self._stopping = asyncio.create_task(self._cancel_until_acknowledged(self._work))

    def acknowledge(self) -> JobFailure:
        """Return why the work was cancelled; from now on it is not cancelled again."""
        self._acknowledged = True
        if self.stopped_by is None:  # Celery terminated the task
            self.stopped_by = JobCancelled("Cancelled: its task was terminated.")
            self.stopped_at = elapsed_clock()
        return self.stopped_by

    def is_repeated_after(self, failure: JobFailure | None) -> bool:
        """Return whether the job is begun again, after a pause, when this attempt has failed."""
        if isinstance(failure, HostFault):
            return False
        if failure is None or isinstance(failure, LedgerUnavailable):
            return failure is not None
        if self.is_refused_after(failure):
            return failure.retryable
        return failure.retryable and self.claim.attempt < self.claim.spec.max_attempts

    def is_refused_after(self, failure: JobFailure) -> bool:
        """Return whether a host that is fit could not open the sandbox, and another one may."""
        return failure.depends_on_host and not self.has_sandbox

    async def _cancel_until_acknowledged(self, work: asyncio.Task[Outcome]) -> None:
        async with self._turns:
            await asyncio.sleep(0)
        while not (work.done() or self._acknowledged):
            work.cancel()
            await asyncio.sleep(CANCEL_AGAIN_SECONDS)

    @contextlib.contextmanager
    def deadline(self) -> Iterator[None]:
        """Stop the attempt when the job's time is over, unless the context was left before."""
        late = out_of_time(self.timeout_seconds)
        alarm = asyncio.get_running_loop().call_later(self.left_seconds, self.stop, late)
        try:
            yield
        finally:
            alarm.cancel()
