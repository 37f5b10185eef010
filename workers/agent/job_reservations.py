"""What a job's model calls reserve of the budgets that it shares, before they are sent."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from fanout.orchestrator.deep_agent import (
    LEAST_OUTPUT_TOKENS,
    Account,
    BudgetUsedUp,
    ModelDenied,
    ModelUsage,
    price,
)
from fanout.orchestrator.delegation.submission_check import without_price
from fanout.orchestrator.jobs.failures import LedgerUnavailable
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.jobs.store.reservation_store import (
    CallSize,
    ReservationStore,
    SharedLimit,
    UsedUp,
)

from ..heartbeat import HeldLease
from .session_journal import LINE_CHARACTERS, AttemptJournal
from .shared_limits import SharedBudget

WAITS = "waits until other model calls end: all that is left of a budget is reserved for them"


class JobReservations:
    """The reservations of one attempt.

    Args:
        reservations: Those of the installation.
        shared: The budgets that the job shares.
        lease: The attempt's lease.
        journal: The attempt's journal.
    """

    def __init__(
        self,
        reservations: ReservationStore,
        shared: SharedBudget,
        lease: HeldLease,
        journal: AttemptJournal,
    ) -> None:
        self._reservations = reservations
        self._shared = shared
        self._lease = lease
        self._journal = journal

    async def reserve(
        self, call: str, model: str, input_tokens: int, most_output_tokens: int
    ) -> int | None:
        """See `deep_agent.Reservations`.

        Raises:
            BudgetUsedUp: A budget has no room for the call.
            ModelDenied: A budget of money binds the job, and the model's price is not known.
            LeaseLost: Another attempt holds the job.
            LedgerUnavailable: Redis does not answer for a long time.
        """
        shared = [(job_id, one) for job_id, one in await self._shared.accounts() if _binds(one)]
        if not shared:
            return None
        size = _size(model, input_tokens, most_output_tokens, [account for _, account in shared])
        least = size.least_output_tokens
        self._shared.least_call = ModelUsage(
            input_tokens=input_tokens,
            output_tokens=least,
            cost_usd=size.input_usd + least * size.output_usd,
        )
        claim = self._lease.claim
        limits = [
            SharedLimit(job_id, one.limits.max_tokens, one.limits.max_cost_usd)
            for job_id, one in shared
        ]
        self._lease.check()
        found = await self._reservations.reserve(
            claim.spec.id, claim.token, call, size, limits, on_wait=self._waits
        )
        if isinstance(found, UsedUp):
            _, account = shared[found.budget]
            raise BudgetUsedUp(
                account.no_room(is_money=found.is_money, used=found.used, needed=found.needed)
            )
        return found

    async def settle(self, call: str, model: str, used: ModelUsage, *, is_reply: bool) -> None:
        """See `deep_agent.Reservations`.

        Raises:
            LedgerUnavailable: Redis does not answer for a long time.
        """
        await self._reservations.settle(
            self._lease.claim.spec.id,
            call,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cost_usd=price(model, used) or 0.0,
            is_reply=is_reply,
        )

    async def _waits(self) -> None:
        self._journal.activity.begin("queue")
        with contextlib.suppress(LedgerUnavailable):  # a log line may be lost
            await self._journal.note(
                EventType.LOG, {"stream": "model", "text": WAITS}, WAITS[:LINE_CHARACTERS]
            )


def _binds(account: Account) -> bool:
    return account.limits.max_tokens is not None or account.limits.max_cost_usd is not None


def _size(model: str, input_tokens: int, most: int, accounts: list[Account]) -> CallSize:
    """Return what a call may use and what that costs; nothing, where no budget is one of money.

    Raises:
        ModelDenied: The price is needed and not known.
    """
    size = CallSize(model, input_tokens, most, min(most, LEAST_OUTPUT_TOKENS))
    if all(account.limits.max_cost_usd is None for account in accounts):
        return size
    whole = price(model, ModelUsage(input_tokens=input_tokens, output_tokens=most))
    read = price(model, ModelUsage(input_tokens=input_tokens))
    if whole is None or read is None:
        raise ModelDenied(without_price(model))
    return replace(size, input_usd=read, output_usd=(whole - read) / most)
