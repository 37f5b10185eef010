"""What calls of models reserve of their jobs' budgets before they are sent.

A budget is a limit of a job for itself and all jobs below it, or that of a tree. What a call may
use at the most is reserved of each of them in one step, so that calls which are sent at the same
time keep within the limits together. When a call ends, what it has used takes the place of that. A
reservation belongs to the attempt that made it: if the attempt ends first, because its worker died,
all that was reserved counts as spent.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from redis.asyncio import Redis

from ..accounts import MAX_MODEL_CHARACTERS
from ..budget import NANODOLLARS
from ..failures import LeaseLost
from .keys import Keys
from .lua_scripts import Scripts
from .outage import through_outage

FIRST_PAUSE_SECONDS = 0.1
"""After this a call that has to wait for others asks again; each further pause is half as long
again."""
LONGEST_PAUSE_SECONDS = 3.0
"""The longest such pause: two hundred calls that wait ask some seventy times a second together."""


@dataclass(frozen=True)
class SharedLimit:
    """A budget: what a job and all jobs below it may use together; None: no limit."""

    job_id: str
    """The job; a tree's root id for the tree."""
    max_tokens: int | None = None
    max_cost_usd: float | None = None


@dataclass(frozen=True)
class CallSize:
    """What one call of a model may use."""

    model: str
    input_tokens: int
    most_output_tokens: int
    least_output_tokens: int
    """With less room the call is not sent."""
    input_usd: float = 0.0
    """What its input costs."""
    output_usd: float = 0.0
    """What each token of its output costs."""


class UsedUp(NamedTuple):
    """Why a call cannot be made, also when the calls of others have ended."""

    budget: int
    """The index of the budget that has no room for it."""
    is_money: bool
    """Whether money is missing; else tokens are."""
    used: float
    """What is used of the budget, in tokens or US dollars."""
    needed: float
    """The least that the call needs, in the same unit."""


Wait = Callable[[], Awaitable[None]]


class ReservationStore:
    """The reservations of one installation.

    Args:
        redis: The client.
        keys: The key names.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._run = Scripts(redis, keys, ("reserve", "settle_call")).run

    async def reserve(
        self,
        job_id: str,
        token: int,
        call: str,
        size: CallSize,
        limits: Sequence[SharedLimit],
        *,
        on_wait: Wait,
    ) -> int | UsedUp:
        """Reserve what a call may use; wait while only the calls of others are in the way.

        Args:
            job_id: The job that makes the call.
            token: That of its attempt.
            call: A unique name of the call.
            size: What it may use.
            limits: The budgets that bind it.
            on_wait: Called once if it has to wait.

        Returns:
            The output tokens that the call may have; or why it cannot be made.

        Raises:
            LeaseLost: Another attempt holds the job.
            LedgerUnavailable: Redis was unavailable for longer than `OUTAGE_SECONDS`.
        """
        ask = partial(self._ask, job_id, token, call, size, limits)
        pause, has_waited = FIRST_PAUSE_SECONDS, False
        while (answer := await through_outage(ask)) is None:
            if not has_waited:
                has_waited = True
                await on_wait()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load
            pause = min(1.5 * pause, LONGEST_PAUSE_SECONDS)
        return answer

    async def _ask(
        self, job_id: str, token: int, call: str, size: CallSize, limits: Sequence[SharedLimit]
    ) -> int | UsedUp | None:
        """Return as `reserve` does; None if the call has to wait."""
        budgets = [
            value
            for limit in limits
            for value in (limit.job_id, _text(limit.max_tokens), _text(_nano(limit.max_cost_usd)))
        ]
        answer, *more = await self._run(
            "reserve",
            job_id,
            token,
            call,
            size.model[:MAX_MODEL_CHARACTERS],
            size.input_tokens,
            size.most_output_tokens,
            size.least_output_tokens,
            size.input_usd * NANODOLLARS,
            size.output_usd * NANODOLLARS,
            *budgets,
        )
        if answer == "lost":
            raise LeaseLost("Another attempt holds the job.")
        if answer == "used up":
            position, measure, used, needed = more
            unit = NANODOLLARS if measure == "nanodollars" else 1
            return UsedUp(int(position) - 1, unit != 1, float(used) / unit, float(needed) / unit)
        return int(more[0]) if answer == "reserved" else None

    async def settle(
        self,
        job_id: str,
        call: str,
        *,
        input_tokens: int,
        output_tokens: int,
        cost_usd: float,
        is_reply: bool,
    ) -> None:
        """Replace what a call has reserved by what it has used.

        Args:
            job_id: The job that made the call.
            call: The name of the call.
            input_tokens: What it has used.
            output_tokens: What it has used.
            cost_usd: What that costs.
            is_reply: Whether there is a reply, whose event in the journal will be charged; until
                then it is held. What else was used is charged at once.

        Raises:
            LedgerUnavailable: Redis was unavailable for longer than `OUTAGE_SECONDS`.
        """
        nanodollars = _nano(cost_usd) or 0
        arguments = (input_tokens, output_tokens, nanodollars, int(is_reply))
        await through_outage(partial(self._run, "settle_call", job_id, call, *arguments))


def _nano(dollars: float | None) -> int | None:
    return None if dollars is None else round(dollars * NANODOLLARS)


def _text(limit: int | None) -> str:
    return "" if limit is None else str(limit)
