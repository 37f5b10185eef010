"""What a journal's entries charge, and that it goes with the jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fakeredis import FakeAsyncRedis

from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.store.journal import EventType, Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger

SPENT = {"model_calls": 1, "input_tokens": 100, "output_tokens": 10, "cost_usd": 0.25}


@pytest.fixture
async def redis() -> AsyncIterator[FakeAsyncRedis]:
    async with FakeAsyncRedis(decode_responses=True) as made:
        yield made


async def test_an_entry_charges_its_job_all_above_it_and_its_tree_and_all_of_it_is_forgotten(
    redis: FakeAsyncRedis,
) -> None:
    ledger, journal = Ledger(redis, Keys()), Journal(redis, Keys())
    tree = {"root_id": "session", "description": "x"}
    top = JobSpec(id="top", **tree)
    below = JobSpec(id="below", parent_id="top", depth=1, **tree)
    beside = JobSpec(id="beside", **tree)
    alone = JobSpec(id="alone", description="x")
    ids = await ledger.submit([top, below, beside, alone])
    for job_id in ("below", "below", "beside", "alone"):
        await journal.append(job_id, 1, EventType.MODEL_REPLY, {}, used=SPENT)
    await journal.append("top", 1, EventType.TOOL_RESULT, {})

    session, *of_jobs = await ledger.usage(["session", *ids])
    assert [usage.model_calls for usage in of_jobs] == [2, 2, 1, 1]
    assert (session.model_calls, session.input_tokens, session.output_tokens) == (3, 300, 30)
    assert session.cost_usd == pytest.approx(0.75)
    assert (await ledger.usage(["nobody"]))[0].cost_usd is None

    for job_id in ids:
        await ledger.cancel(job_id)
    await ledger.forget(-60)
    assert [key async for key in redis.scan_iter("fanout:usage:*")] == []
    await journal.append("below", 1, EventType.MODEL_REPLY, {}, used=SPENT)
    assert [key async for key in redis.scan_iter("fanout:usage:*")] == [], (
        "nothing is kept for who is gone"
    )
