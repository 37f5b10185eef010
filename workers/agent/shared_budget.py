"""The budgets that a job shares.

With its descendants, with those of the jobs above it, with its whole tree.

What is consumed stands in the ledger, charged with each entry of a journal. It is read before every
model call, so jobs side by side pass a limit by the calls that they are in the middle of, and by no
more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from orchestrator.deep_agent import Account, BudgetLimits, ModelUsage
from orchestrator.delegation.agents import budget_limits, tree_budget_limits
from orchestrator.jobs.failures import UnknownJob
from orchestrator.jobs.spec import JobSpec
from orchestrator.jobs.store.outage import through_outage
from workers.agent.services import JobServices


@dataclass(frozen=True)
class _SharedLimits:
    job_id: str
    """The job whose descendants share them."""
    limits: BudgetLimits
    scope: str
    """The prefix of the limits' names in a message."""
    owner: str
    """The words after a limit's name in a message."""


class SharedBudget:
    """The accounts of one job."""

    def __init__(self, services: JobServices, spec: JobSpec) -> None:
        self._services = services
        self._spec = spec
        self._shared: list[_SharedLimits] | None = None
        self.used = ModelUsage()
        """The use of the job and its descendants when it was last read; nothing when no budget was
        set for the job."""

    async def read(self) -> list[Account]:
        """Return the accounts as they are now.

        Raises:
            LedgerUnavailable: Redis does not answer for a long time.
        """
        if self._shared is None:
            self._shared = await through_outage(self._find)
        ids = [shared.job_id for shared in self._shared]
        found = await through_outage(partial(self._services.ledger.usage, ids)) if ids else []
        spent = [ModelUsage(**usage.model_dump()) for usage in found]
        self.used = dict(zip(ids, spent, strict=True)).get(self._spec.id, self.used)
        return [
            Account(shared.limits, used, shared.scope, shared.owner)
            for shared, used in zip(self._shared, spent, strict=True)
        ]

    async def _find(self) -> list[_SharedLimits]:
        """Return the budgets that bind the job: those of each job above it, and of its tree."""
        job: JobSpec | None = self._spec
        shared = []
        while job is not None:
            owner = " for this job" if job is self._spec else f" of job {job.id}"
            limits = budget_limits(self._services.given_limits(job))
            limits = replace(limits, max_tool_calls=None)  # each job's own
            shared.append(_SharedLimits(job.id, limits, "", f"{owner} and its children"))
            job = await self._parent(job)
        of_tree = tree_budget_limits(self._services.bounds)
        shared.append(_SharedLimits(self._spec.root_id, of_tree, "tree_", ""))
        return [found for found in shared if found.limits != BudgetLimits()]

    async def _parent(self, job: JobSpec) -> JobSpec | None:
        if job.parent_id is None:
            return None
        try:
            record = await self._services.ledger.get(job.parent_id)
        except UnknownJob:
            return None
        return JobSpec.model_validate(record.model_dump(include=set(JobSpec.model_fields)))


def beyond(total: ModelUsage, own: ModelUsage) -> ModelUsage:
    """What others have of a total, of which a part is one's own."""
    theirs, ours = vars(total), vars(own)
    return ModelUsage(**{name: max((theirs[name] or 0) - (ours[name] or 0), 0) for name in theirs})
