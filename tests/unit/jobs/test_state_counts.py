"""Counts of jobs by state come from counters, which heal where earlier releases do not count."""

from __future__ import annotations

from collections import Counter

import pytest
from fakeredis import FakeAsyncRedis

from fanout.orchestrator.jobs.store import records as reading
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger
from fanout.orchestrator.jobs.store.records import Records
from tests.builders import make_result, make_spec, make_worker

JOBS = 12


async def counted(redis: FakeAsyncRedis, **options: bool) -> dict[str, int]:
    found = await Records(redis, Keys()).state_counts(**options)
    return {state: number for state, number in found.states.items() if number}


async def stored(redis: FakeAsyncRedis) -> dict[str, int]:
    """What the records say."""
    ids = await redis.zrange(Keys().index, 0, -1)
    return dict(Counter([await redis.hget(Keys().job(job_id), "state") for job_id in ids]))


async def some_work(redis: FakeAsyncRedis) -> Ledger:
    """Jobs in four states, of which one was deleted."""
    ledger, worker = Ledger(redis, Keys()), make_worker(concurrency=JOBS)
    await ledger.register(worker, 60)
    ids = await ledger.submit([make_spec("a job") for _ in range(JOBS)])
    while await ledger.dispatch(100):
        pass
    claims = [await ledger.claim(job_id, worker, 60) for job_id in ids[:6]]
    for claim in claims[:3]:
        assert isinstance(claim, Claim)
        result = make_result(job_id=claim.spec.id)
        assert await ledger.finish(claim.spec.id, claim.token, result, {})
    assert isinstance(claims[3], Claim)
    await ledger.release(claims[3].spec.id, claims[3].token, "its worker stops")
    await ledger.cancel(ids[-1])
    return ledger


async def test_counters_follow_each_change_of_state(redis: FakeAsyncRedis) -> None:
    assert await counted(redis) == {}
    ledger = await some_work(redis)

    assert await counted(redis) == await stored(redis)
    assert (await stored(redis))["succeeded"] == 3
    await ledger.forget(0)
    assert await counted(redis) == await stored(redis)


async def test_a_recount_in_steps_heals_what_an_earlier_release_did_not_count(
    redis: FakeAsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "COUNTED_AT_ONCE", 5)
    await some_work(redis)
    await redis.delete(f"{Keys().prefix}:state_counts")
    assert await counted(redis) == await stored(redis), "the first reading counts all"

    first, *_ = await redis.zrange(Keys().index, 0, 0)
    state = await redis.hget(Keys().job(first), "state")
    assert state != "failed"
    await redis.hset(Keys().job(first), "state", "failed")  # as a script of that release does
    for _ in range(6):
        await counted(redis)

    found = await Records(redis, Keys()).state_counts()
    assert found.is_consistent
    assert {state: number for state, number in found.states.items() if number} == await stored(
        redis
    )


async def test_a_job_that_was_deleted_uncounted_is_noticed(
    redis: FakeAsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "COUNTED_AT_ONCE", 5)
    await some_work(redis)
    await counted(redis)
    first, *_ = await redis.zrange(Keys().index, 0, 0)
    await redis.zrem(Keys().index, first)

    assert not (await Records(redis, Keys()).state_counts()).is_consistent
    assert await counted(redis, begin_again=True) == await stored(redis)
