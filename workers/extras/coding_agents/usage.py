"""What a coding agent uses, and when that is more than its job may use.

An agent tells at the end of a turn what the turn has used, if it tells it at all. So a budget of
tokens or money binds within a turn only where a meter reads the answers of its models.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from fanout.orchestrator.deep_agent import Account, ModelUsage, exceeded
from fanout.orchestrator.delegation.agents import budget_limits
from fanout.orchestrator.jobs.spec import Limits

UNREAD = (
    "{count} answers of its model's service told no tokens, so that its budget of tokens or money "
    "could not count them; its time and its requests were limited."
)
UNPRICED = "The price of the model {model} is not known, so its cost could not be limited."
MOST = 10**12
"""More tokens than any turn has; a larger number is not true."""


class MeteredUsage(Protocol):
    """A meter of a job's requests to models, outside of its sandbox."""

    unread: int
    """The requests whose answers told nothing of tokens."""
    unpriced: str
    """A model of unknown price; empty for none."""

    def total(self) -> ModelUsage:
        """Return what this attempt has used so far: its requests, and what their answers told."""


class Metered:
    """What a meter has counted, by what is new since it was last asked."""

    def __init__(self, meter: MeteredUsage) -> None:
        self._meter = meter
        self._before = ModelUsage()

    def __call__(self) -> ModelUsage:
        """Return what is new."""
        now, before = self._meter.total(), self._before
        self._before = now
        cost = None if now.cost_usd is None else now.cost_usd - (before.cost_usd or 0)
        return ModelUsage(
            model_calls=now.model_calls - before.model_calls,
            input_tokens=now.input_tokens - before.input_tokens,
            output_tokens=now.output_tokens - before.output_tokens,
            cached_tokens=now.cached_tokens - before.cached_tokens,
            cost_usd=cost,
        )

    @property
    def is_reading(self) -> bool:
        """Whether it could read something."""
        return self._meter.total().model_calls > self._meter.unread

    def uncounted(self, limits: Limits) -> str:
        """Return a sentence about limits that bind less than they say; empty for none.

        Args:
            limits: The job's limits.
        """
        if self._meter.unread and (limits.max_tokens or limits.max_cost_usd):
            return UNREAD.format(count=self._meter.unread)
        if self._meter.unpriced and limits.max_cost_usd:
            return UNPRICED.format(model=self._meter.unpriced)
        return ""

    @property
    def unread(self) -> ModelUsage:
        """What is new, without taking it."""
        before = self._before
        new = self()
        self._before = before
        return new


def over_budget(used: ModelUsage, limits: Limits, shared: Iterable[Account] = ()) -> str | None:
    """Return a sentence about the first limit that is exceeded; None for none.

    Args:
        used: What the job has used.
        limits: The job's limits.
        shared: The accounts that the job shares with others.
    """
    return exceeded([Account(budget_limits(limits), used), *shared])


def told_usage(usage: Any) -> ModelUsage:
    """Return the tokens that an agent tells at the end of a turn; none if it tells none.

    Agents differ in whether cached input and thoughts are parts of the other numbers: the total
    says so.
    """
    if usage is None:
        return ModelUsage()
    thoughts, total = usage.thought_tokens or 0, usage.total_tokens
    read = max(usage.input_tokens, total - usage.output_tokens - thoughts)
    written = max(usage.output_tokens, total - read)
    return ModelUsage(
        input_tokens=min(read, MOST),
        output_tokens=min(written, MOST),
        cached_tokens=min(usage.cached_read_tokens or 0, read, MOST),
    )
