"""Budgets are reserved before they are spent: the rules of the scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from redis.asyncio import Redis

from fanout.orchestrator.jobs.budget import BudgetState
from fanout.orchestrator.jobs.failures import LeaseLost
from fanout.orchestrator.jobs.spec import TreeBounds
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.journal import EventType, Journal
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger
from fanout.orchestrator.jobs.store.reservation_store import (
    CallSize,
    SharedLimit,
    UsedUp,
)
from tests.builders import make_result, make_spec, make_worker
from tests.waits import eventually, until_reaped

pytestmark = pytest.mark.redis

WORKER = make_worker()
CALL = CallSize("a-model", 1000, 8000, 4000, input_usd=0.01, output_usd=0.000_01)
"""At the least 0.05 dollars, at the most 0.09."""


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    """A real one: a fake one takes numbers that it does not."""
    async with connect(redis_url) as client:
        yield client


class Calls:
    """The calls of one attempt."""

    def __init__(self, ledger: Ledger, claim: Claim, *limits: SharedLimit) -> None:
        self._ledger = ledger
        self.claim = claim
        self.limits = limits
        self.waits = 0

    async def reserve(self, call: str, size: CallSize = CALL) -> int | UsedUp:
        async def waits() -> None:
            self.waits += 1

        spec, token = self.claim.spec, self.claim.token
        return await self._ledger.reservations.reserve(
            spec.id, token, call, size, self.limits, on_wait=waits
        )

    async def settle(
        self, call: str, tokens: int = 0, cost: float = 0.0, *, is_reply: bool = False
    ) -> None:
        await self._ledger.reservations.settle(
            self.claim.spec.id,
            call,
            input_tokens=tokens,
            output_tokens=0,
            cost_usd=cost,
            is_reply=is_reply,
        )

    async def state(self, job_id: str = "") -> BudgetState:
        found = await self._ledger.budgets([job_id or self.claim.spec.id])
        return found[0]


async def running(ledger: Ledger, *limits: SharedLimit, **fields: object) -> Calls:
    """A running job with budgets; one without the id of a job is the job's own."""
    (job_id,) = await ledger.submit([make_spec(**fields)])
    await ledger.dispatch(100)
    claim = await ledger.claim(job_id, WORKER, 10)
    assert isinstance(claim, Claim), claim
    return Calls(ledger, claim, *(replace(one, job_id=one.job_id or job_id) for one in limits))


async def test_a_call_reserves_all_it_asks_for_and_less_where_less_is_left_and_what_it_used_remains(
    ledger: Ledger,
) -> None:
    calls = await running(ledger, SharedLimit("", max_cost_usd=0.16))

    assert await calls.reserve("first") == 8000
    assert await calls.reserve("second") == 6000
    reserved = await calls.state()
    await calls.settle("first", 500, 0.02)
    await calls.settle("second", 500, 0.03)
    settled = await calls.state()

    assert reserved == BudgetState(
        reserved_tokens=16_000, reserved_cost_usd=0.16, max_cost_usd=0.16, left_cost_usd=0
    )
    assert (settled.reserved_tokens, settled.reserved_cost_usd) == (0, 0)
    assert (settled.used.input_tokens, settled.used.cost_usd) == (1000, 0.05)
    assert settled.left_cost_usd == 0.11


async def test_a_call_for_which_nothing_can_become_free_names_the_budget_and_what_is_missing(
    ledger: Ledger,
) -> None:
    calls = await running(
        ledger, SharedLimit("", max_tokens=100_000), SharedLimit("", max_cost_usd=0.06)
    )
    await calls.reserve("first")
    await calls.settle("first", 0, 0.02)

    refused = await calls.reserve("second")

    assert refused == UsedUp(1, is_money=True, used=0.02, needed=0.05)
    assert calls.waits == 0
    assert (await calls.state()).reserved_tokens == 0


async def test_a_call_waits_while_only_the_calls_of_others_are_in_its_way(ledger: Ledger) -> None:
    tree = SharedLimit("tree", max_tokens=12_000)
    first = await running(ledger, tree, root_id="tree")
    second = await running(ledger, tree, root_id="tree")
    await first.reserve("first")
    waiting = asyncio.create_task(second.reserve("second"))
    await eventually(lambda: second.waits, seconds=30)

    await first.settle("first", 1000)

    assert await waiting == 8000
    assert second.waits == 1
    assert (await first.state("tree")).left_tokens == 2000


async def test_a_waiting_call_ends_when_others_used_what_it_waited_for(ledger: Ledger) -> None:
    tree = SharedLimit("tree", max_tokens=12_000)
    first = await running(ledger, tree, root_id="tree")
    second = await running(ledger, tree, root_id="tree")
    await first.reserve("first")
    waiting = asyncio.create_task(second.reserve("second"))
    await eventually(lambda: second.waits, seconds=30)

    await first.settle("first", 9000)

    assert await waiting == UsedUp(0, is_money=False, used=9000, needed=5000)


async def test_every_budget_above_a_job_holds_what_its_call_reserves(ledger: Ledger) -> None:
    parent = await running(ledger, root_id="tree")
    above = parent.claim.spec
    child = make_spec(root_id="tree", parent_id=above.id, depth=1)
    await ledger.start(above.id, parent.claim.token, child, TreeBounds())
    await ledger.dispatch(100)
    claim = await ledger.claim(child.id, WORKER, 10)
    assert isinstance(claim, Claim)
    calls = Calls(ledger, claim, SharedLimit(above.id, max_cost_usd=1.0))

    await calls.reserve("call")

    for job_id in (child.id, above.id, "tree"):
        assert (await calls.state(job_id)).reserved_cost_usd == 0.09
    assert (await calls.state(above.id)).max_cost_usd == 1.0
    assert (await calls.state("tree")).max_cost_usd is None


async def test_repeated_requests_reserve_and_settle_once(ledger: Ledger, journal: Journal) -> None:
    calls = await running(ledger, SharedLimit("", max_tokens=100_000))

    free = replace(CALL, input_usd=0, output_usd=0)

    assert [await calls.reserve("call", free) for _ in range(2)] == [8000, 8000]
    reserved = await calls.state()
    for _ in range(2):
        await calls.settle("call", 700, is_reply=True)
    for _ in range(2):
        await calls.reserve("other", free)
        await calls.settle("other")
    await journal.append(calls.claim.spec.id, 1, EventType.MODEL_REPLY, {}, used={"model_calls": 1})
    settled = await calls.state()

    assert reserved.reserved_tokens == 9000
    assert (settled.used.input_tokens, settled.reserved_tokens) == (700, 0)


async def test_a_reply_is_held_until_its_event_is_charged_and_what_that_does_not_report_is_spent_too(
    ledger: Ledger, journal: Journal
) -> None:
    calls = await running(ledger, SharedLimit("", max_tokens=100_000, max_cost_usd=1.0))
    await calls.reserve("search")
    await calls.settle("search", 300, 0.01, is_reply=True)
    await calls.reserve("turn")
    await calls.settle("turn", 2000, 0.04, is_reply=True)
    held = await calls.state()

    used = {"model_calls": 1.0, "input_tokens": 2000.0, "cost_usd": 0.04}
    job_id = calls.claim.spec.id
    await journal.append(job_id, 1, EventType.MODEL_REPLY, {}, name="reply", used=used)
    charged = await calls.state()

    assert (held.used.input_tokens, held.reserved_tokens) == (0, 2300)
    assert (charged.used.input_tokens, charged.reserved_tokens) == (2300, 0)
    assert charged.used.cost_usd == pytest.approx(0.05)
    assert held.left_cost_usd == charged.left_cost_usd == pytest.approx(0.95)


async def test_what_the_call_of_a_lost_worker_had_reserved_counts_as_spent(ledger: Ledger) -> None:
    (job_id,) = await ledger.submit([make_spec()])
    await ledger.dispatch(100)
    claim = await ledger.claim(job_id, WORKER, 0.01)
    assert isinstance(claim, Claim)
    calls = Calls(ledger, claim, SharedLimit(job_id, max_cost_usd=1.0))
    await calls.reserve("call")

    await until_reaped(ledger)
    await calls.settle("call", 10, 0.01)  # it was only slow
    state = await calls.state()

    assert (state.reserved_cost_usd, state.used.cost_usd) == (0, 0.09)
    assert state.used.input_tokens + state.used.output_tokens == 9000
    with pytest.raises(LeaseLost):
        await calls.reserve("another")


async def test_what_is_reserved_goes_with_the_tree(redis: Redis, ledger: Ledger) -> None:
    calls = await running(ledger, SharedLimit("tree", max_tokens=100_000), root_id="tree")
    claim = calls.claim
    await calls.reserve("call")
    await ledger.finish(claim.spec.id, claim.token, make_result(claim.spec.id), {})
    ended = await calls.state("tree")

    await ledger.forget(-60)

    assert (ended.reserved_tokens, ended.used.input_tokens) == (0, 1000)
    assert [name async for name in redis.scan_iter("*dispatch:calls*")] == []
    assert [name async for name in redis.scan_iter("*dispatch:reserved*")] == []
