"""One attempt at a job while it runs, and the handle by which it is stopped from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from orchestrator.configuration.agent_definitions import AgentDefinition
from orchestrator.jobs.failures import JobCancelled, JobFailure
from orchestrator.jobs.spec import Limits
from orchestrator.jobs.store.ledger import Claim
from workers.attempt.outcome import Outcome

INSIST_SECONDS = 0.2
"""Before Python 3.12 `wait_for` may lose a cancel, so it is repeated."""


class Attempt:
    """One attempt while it runs, and the handle by which it is stopped from outside."""

    def __init__(
        self,
        claim: Claim,
        definition: AgentDefinition,
        limits: Limits,
        outcome: Outcome,
        ends_at: float,
    ) -> None:
        self.claim = claim
        self.ends_at = ends_at
        """When the job's time is over, on `elapsed_clock`."""
        self.definition = definition
        self.limits = limits
        """Every field that a sandbox needs is set."""
        self.outcome = outcome
        self.stopped_by: JobFailure | None = None
        self.heard = False
        """The agent's run has ended for the stop; from then on only its changes are collected."""
        self._work: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the attempt's work; how it failed goes into its outcome."""
        self._work = asyncio.create_task(work)
        try:
            await self._work
        except asyncio.CancelledError:
            if self.stopped_by is None:  # not our own doing: Celery terminated the task
                self.stop(JobCancelled("The job was terminated."))
                await asyncio.wait({self._work})
            self.outcome.failure = self.stopped_by
        finally:
            if self._stopping is not None:
                self._stopping.cancel()

    def stop(self, reason: JobFailure) -> None:
        """End the attempt; the first reason counts."""
        if self.stopped_by is None and self._work is not None:
            self.stopped_by = reason
            self._stopping = asyncio.create_task(self._insist(self._work))

    async def _insist(self, work: asyncio.Task[None]) -> None:
        """Cancel until it is heard.

        Before Python 3.12 `wait_for` loses a cancel that meets its answer.
        """
        while not (work.done() or self.heard):
            work.cancel()
            await asyncio.sleep(INSIST_SECONDS)
