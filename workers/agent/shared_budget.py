"""The budgets that a job shares.

With its descendants, with those of the jobs above it, with its whole tree.

What is consumed stands in the ledger, charged with each entry of a journal. It is read before every
model call, so jobs side by side pass a limit by the calls that they are in the middle of, and by no
more.
"""

from __future__ import annotations

from functools import partial

from orchestrator.configuration.agent_definitions import AgentDefinitions
from orchestrator.deep_agent import Account, BudgetLimits, ModelUsage
from orchestrator.jobs.failures import UnknownAgent, UnknownJob
from orchestrator.jobs.spec import JobSpec, Limits, TreeBounds
from orchestrator.jobs.store.ledger import Ledger
from orchestrator.jobs.store.outage import through_outage


def given_limits(spec: JobSpec, definitions: AgentDefinitions) -> Limits:
    """What was set for a job or for its agent, which binds its descendants too.

    The installation's defaults do not: they are what one agent needs, and each agent has them of
    its own.
    """
    try:
        return spec.limits.over(definitions[spec.agent].job_limits())
    except UnknownAgent:  # another release's
        return spec.limits


class SharedBudget:
    """The accounts of one job."""

    def __init__(
        self, ledger: Ledger, definitions: AgentDefinitions, bounds: TreeBounds, spec: JobSpec
    ) -> None:
        self._ledger = ledger
        self._definitions = definitions
        self._spec = spec
        self._of_tree = BudgetLimits(
            max_model_calls=bounds.max_tree_model_calls,
            max_tokens=bounds.max_tree_tokens,
            max_cost_usd=bounds.max_tree_cost_usd,
        )
        self._shared: list[tuple[str, BudgetLimits, str, str]] | None = None
        self.used = ModelUsage()
        """By the job and all below it, when it was read last; nothing where no budget was set for
        it."""

    async def read(self) -> list[Account]:
        """The accounts, as they are now.

        Raises:
            LedgerUnavailable: Redis stays away.
        """
        if self._shared is None:
            self._shared = await through_outage(self._find)
        ids = [job_id for job_id, *_ in self._shared]
        found = await through_outage(partial(self._ledger.usage, ids)) if ids else []
        spent = [ModelUsage(**usage.model_dump()) for usage in found]
        by_id = dict(zip(ids, spent, strict=True))
        self.used = by_id.get(self._spec.id, self.used)
        return [
            Account(limits, used, scope, whose)
            for (_, limits, scope, whose), used in zip(self._shared, spent, strict=True)
        ]

    async def _find(self) -> list[tuple[str, BudgetLimits, str, str]]:
        """Whose limits bind the job: id, limits, and how they are told."""
        job: JobSpec | None = self._spec
        shared = []
        while job is not None:
            whose = " for this job" if job is self._spec else f" of job {job.id}"
            shared.append(
                (
                    job.id,
                    _budget_limits(given_limits(job, self._definitions)),
                    "",
                    f"{whose} and its children",
                )
            )
            job = await self._parent(job)
        shared.append((self._spec.root_id, self._of_tree, "tree_", ""))
        return [one for one in shared if one[1] != BudgetLimits()]

    async def _parent(self, job: JobSpec) -> JobSpec | None:
        if job.parent_id is None:
            return None
        try:
            record = await self._ledger.get(job.parent_id)
        except UnknownJob:
            return None
        return JobSpec.model_validate(record.model_dump(include=set(JobSpec.model_fields)))


def beyond(total: ModelUsage, own: ModelUsage) -> ModelUsage:
    """What others have of a total, of which a part is one's own."""
    theirs, ours = vars(total), vars(own)
    return ModelUsage(**{name: max((theirs[name] or 0) - (ours[name] or 0), 0) for name in theirs})


def _budget_limits(limits: Limits) -> BudgetLimits:
    return BudgetLimits(
        max_model_calls=limits.max_model_calls,
        max_tokens=limits.max_tokens,
        max_cost_usd=limits.max_cost_usd,
    )
