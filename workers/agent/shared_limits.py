"""The limits that a job shares with others: budgets of its tree, and the rates of models.

The ledger holds what was used, charged with each entry of a journal. It is read before every model
call, so that the last one that fits sums up; what a call may use is reserved
(`job_reservations.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from pydantic import JsonValue

from fanout.orchestrator.deep_agent import Account, Budget, BudgetLimits, ModelUsage
from fanout.orchestrator.delegation.agents import budget_limits, model_usage, tree_account
from fanout.orchestrator.jobs.failures import LedgerUnavailable, UnknownJob
from fanout.orchestrator.jobs.result import Usage
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.jobs.store.outage import through_outage
from fanout.orchestrator.jobs.store.rate_limiter import RedisRateLimiter

from .services import JobServices
from .session_journal import LINE_CHARACTERS, AttemptJournal


class SharedBudget:
    """Reads the accounts that one job shares.

    Args:
        services: What all jobs of the worker share.
        spec: The job.
    """

    def __init__(self, services: JobServices, spec: JobSpec) -> None:
        self._services = services
        self._spec = spec
        self._shared: list[tuple[str, Account]] | None = None
        """The jobs whose descendants share an account, by id, with the account's limits."""
        self.used_by_descendants = ModelUsage()
        """What the job's descendants had used when it was last read; zero if no budget was set for
        the job."""
        self.least_call = ModelUsage()
        """The least that a model call of the job reserves, by its last one."""

    async def read(self, own: ModelUsage) -> list[Account]:
        """Return the accounts as they are now.

        Args:
            own: What the job itself has used.

        Raises:
            LedgerUnavailable: Redis does not answer for a long time.
        """
        shared = await self.accounts()
        ids = [job_id for job_id, _ in shared]
        found = await through_outage(partial(self._services.ledger.usage, ids)) if ids else []
        used = [model_usage(usage) for usage in found]
        if (all_used := dict(zip(ids, used, strict=True)).get(self._spec.id)) is not None:
            self.used_by_descendants = _difference(all_used, own)
        return [
            replace(account, used=now, least_call=self.least_call)
            for (_, account), now in zip(shared, used, strict=True)
        ]

    async def accounts(self) -> Sequence[tuple[str, Account]]:
        """Return the accounts without what was used, each with the id of its job or tree.

        Raises:
            LedgerUnavailable: Redis does not answer for a long time.
        """
        if self._shared is None:
            self._shared = await through_outage(self._find)
        return self._shared

    async def _find(self) -> list[tuple[str, Account]]:
        """Return the accounts that bind the job: its own, its ancestors' and its tree's."""
        job: JobSpec | None = self._spec
        shared = []
        while job is not None:
            owner = " for this job" if job is self._spec else f" of job {job.id}"
            limits = budget_limits(self._services.given_limits(job))
            limits = replace(limits, max_tool_calls=None)  # not shared: each job has its own
            whose = f"{owner} and its children"
            shared.append((job.id, Account(limits, ModelUsage(), whose=whose)))
            job = await self._parent(job)
        shared.append((self._spec.root_id, tree_account(self._services.bounds)))
        return [(id_, account) for id_, account in shared if account.limits != BudgetLimits()]

    async def _parent(self, job: JobSpec) -> JobSpec | None:
        if job.parent_id is None:
            return None
        try:
            return await self._services.specification_above(job.parent_id)
        except UnknownJob:
            return None


class JobUsage:
    """What a job has used; it may be read at any time.

    Args:
        shared: The accounts that the job shares.
    """

    def __init__(self, shared: SharedBudget) -> None:
        self._shared = shared
        self.budget = Budget()
        """The budget of the job's agent."""

    def own(self) -> Usage:
        """Return what the agent has used so far, earlier attempts included."""
        return Usage.model_validate(vars(self.budget.usage))

    def charged(self) -> ModelUsage:
        """Return what counts against the job's budgets: its own and its children's usage."""
        return self.budget.usage.plus(self._shared.used_by_descendants)


def _difference(total: ModelUsage, own: ModelUsage) -> ModelUsage:
    """Return what of a total was not used by the job itself; never less than zero.

    Args:
        total: The usage of a job and its descendants.
        own: The usage of the job alone, which may be newer.
    """
    all_used, own_used = vars(total), vars(own)
    return ModelUsage(
        **{name: max((used or 0) - (own_used[name] or 0), 0) for name, used in all_used.items()}
    )


class JournaledRateLimiter:
    """The rate limiter of one attempt.

    It appends a `model.request` to the journal just before each request is sent, also for repeated
    requests and for those of summaries. A request that has to wait a second time, because the
    process was paused, is appended again with the same id. The append is a fence as well.

    Args:
        limiter: The rate limiter of the installation.
        journal: The attempt's journal.
        on_request: Is called when a request is about to wait for its rate limit.
    """

    def __init__(
        self, limiter: RedisRateLimiter, journal: AttemptJournal, on_request: Callable[[], None]
    ) -> None:
        self._limiter = limiter
        self._journal = journal
        self._on_request = on_request

    async def enter(self, request: str, model: str, tokens: int) -> None:
        """Wait until the request may be sent, and append it to the journal.

        Args:
            request: The request's id.
            model: The model that is asked.
            tokens: The estimated size of the request.

        Raises:
            LeaseLost: The attempt's lease is lost.
            LedgerUnavailable: Redis does not answer for a long time.
        """

        async def note() -> None:
            data: dict[str, JsonValue] = {"id": request, "model": model, "tokens": tokens}
            await self._journal.note(EventType.MODEL_REQUEST, data)

        async def waits(why: str) -> None:
            self._journal.activity.begin("queue", model=model)
            await self._log(why)

        self._on_request()
        await self._limiter.enter(request, model, tokens, on_wait=waits, on_turn=note)

    async def settle(self, request: str, model: str, tokens: int, used: int) -> None:
        """Replace the estimate of an answered request by the tokens that it used."""
        await self._limiter.settle(request, model, tokens, used)

    async def cut(self, request: str, model: str, tokens: int, asked_seconds: float | None) -> None:
        """Lower the rate after the service rejected a request as one too many.

        Args:
            request: The request's id.
            model: The model that was asked.
            tokens: The estimated size of the request.
            asked_seconds: The pause that the service asked for; None if it named none.

        Raises:
            LeaseLost: The attempt's lease is lost.
        """
        seconds = await self._limiter.cut(request, model, tokens, asked_seconds)
        await self._log(f"{model} has too many requests (429): none is sent for {seconds:.3g} s")

    async def _log(self, why: str) -> None:
        with contextlib.suppress(LedgerUnavailable):  # a log line may be lost
            await self._journal.note(
                EventType.LOG, {"stream": "model", "text": why}, why[:LINE_CHARACTERS]
            )
