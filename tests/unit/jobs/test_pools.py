"""Jobs run on the workers of their pool, and on others only when these are gone."""

from __future__ import annotations

import pytest
from fakeredis import FakeAsyncRedis

from fanout.orchestrator.client.job_reader import JobReader
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import TreeBounds
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger
from fanout.orchestrator.jobs.store.records import Records
from fanout.orchestrator.jobs.worker_info import WorkerInfo
from tests.builders import make_result, make_spec, make_worker

WORKER = make_worker("old", pool="a", concurrency=2, agents=("general-purpose",))
NEW = make_worker("new", pool="b", concurrency=2, agents=("general-purpose", "mine"))
FREE = make_worker("free", concurrency=2)


async def register(ledger: Ledger, *workers: WorkerInfo, seconds: float = 60) -> None:
    for started, worker in enumerate(workers, 1):
        await ledger.register(worker, seconds, started_at=started)


async def sent(ledger: Ledger) -> dict[str, str]:
    """Dispatch, and return to which pool each job was sent."""
    return {job.spec.description: job.pool for job in await ledger.dispatch(100)}


async def claimed(ledger: Ledger, job_id: str, worker: WorkerInfo) -> Claim:
    claim = await ledger.claim(job_id, worker, 10)
    assert isinstance(claim, Claim), claim
    return claim


async def test_each_job_is_sent_to_its_pool_and_one_without_a_pool_to_the_newest(
    ledger: Ledger,
) -> None:
    await register(ledger, WORKER, NEW)
    for pool in ("a", "b", ""):
        await ledger.submit([make_spec(f"of {pool or 'none'}")], pool)

    assert await sent(ledger) == {"of a": "a", "of b": "b", "of none": "b"}


async def test_a_full_pool_keeps_its_jobs_and_does_not_hold_up_another(ledger: Ledger) -> None:
    await register(ledger, WORKER, NEW)
    await ledger.submit([make_spec(f"a{number}") for number in range(5)], "a")
    await ledger.submit([make_spec("mine", agent="mine")], "a")  # which only the other one knows
    await ledger.submit([make_spec("b")], "b")

    assert await sent(ledger) == {"a0": "a", "a1": "a", "mine": "b", "b": "b"}


async def test_a_child_is_of_its_parents_pool_and_another_worker_leaves_it_there(
    ledger: Ledger,
) -> None:
    await register(ledger, WORKER, NEW)
    (parent,) = await ledger.submit([make_spec("parent")], "a")
    assert await sent(ledger) == {"parent": "a"}
    claim = await claimed(ledger, parent, WORKER)
    child = make_spec("child", root_id=parent, parent_id=parent, depth=1)
    await ledger.start(parent, claim.token, child, TreeBounds())
    assert await sent(ledger) == {"child": "a"}

    assert await ledger.claim(child.id, NEW, 10) == "waits for its worker"

    assert await sent(ledger) == {"child": "a"}
    await claimed(ledger, child.id, WORKER)


async def test_the_jobs_of_a_pool_whose_worker_has_ended_run_on_the_others(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    await register(ledger, WORKER, NEW)
    await ledger.submit([make_spec("left")], "a")
    for workers in (Keys().workers, "fanout:dispatch:workers"):
        await redis.zadd(workers, {"old": 1})  # killed: it may be started again
    assert await sent(ledger) == {}
    await ledger.reap()
    assert await sent(ledger) == {}

    await redis.delete("fanout:pool_seen:a")  # it was not started again for that long
    await ledger.reap()

    assert await sent(ledger) == {"left": "b"}
    assert await ledger.dispatch(100) == []


async def test_a_worker_without_a_pool_shares_what_has_none(ledger: Ledger) -> None:
    await register(ledger, NEW, FREE)
    await ledger.submit([make_spec(f"open{number}") for number in range(2)])
    await ledger.submit([make_spec("b")], "b")

    assert await sent(ledger) == {"open0": "", "open1": "", "b": "b"}


@pytest.mark.parametrize(
    ("agent", "needed"), [("general-purpose", True), ("mine", False)], ids=["known", "unknown"]
)
async def test_a_pool_is_needed_while_it_has_a_job_that_it_can_run(
    agent: str, needed: bool, ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    reader = object.__new__(JobReader)
    reader._records = Records(redis, Keys())
    await register(ledger, WORKER)
    assert not await reader.is_pool_needed("a")
    (job_id,) = await ledger.submit([make_spec("x", agent=agent)], "a")

    assert await reader.is_pool_needed("a") == needed

    if needed:
        await sent(ledger)
        claim = await claimed(ledger, job_id, WORKER)
        result: JobResult = make_result(job_id)
        await ledger.finish(job_id, claim.token, result, {})
        assert not await reader.is_pool_needed("a")
    else:
        await ledger.cancel(job_id)
        assert [part async for part in reader._records.of_pool("a")] == [[]]
