"""What one script call does is bounded, whatever the number of jobs, trees, classes and workers.

Commands and calls are counted, not seconds: while a script runs, Redis answers nobody else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass

import pytest
from redis.asyncio import Redis

from fanout.orchestrator.jobs.policy import AdmissionPolicy
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.store import ledger as store
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger
from fanout.orchestrator.jobs.worker_info import WorkerInfo
from tests.builders import make_result, make_spec, make_worker

pytestmark = pytest.mark.redis

KEYS = Keys()
WORKER = make_worker(concurrency=1_000)
OF_A_CALL = 150
"""The most commands of a script call for a single job, besides those that its test names."""


@dataclass
class Cost:
    calls: int = 0
    """Script calls."""
    commands: int = 0
    """Commands in them, and the calls themselves."""

    @property
    def of_a_call(self) -> float:
        return self.commands / self.calls


class Place:
    def __init__(self, redis: Redis) -> None:
        self.redis, self.ledger = redis, Ledger(redis, KEYS)

    async def cost(self, work: Awaitable[object]) -> Cost:
        await self.redis.config_resetstat()
        await work
        stats = await self.redis.info("commandstats")
        calls = stats.get("cmdstat_evalsha", {"calls": 0})["calls"]
        return Cost(calls, sum(kind["calls"] for kind in stats.values()) - 1)

    async def run(self, *specs: JobSpec, worker: WorkerInfo = WORKER) -> list[Claim]:
        """Submit jobs, dispatch them and claim them."""
        await self.ledger.submit(specs)
        jobs = await self.ledger.dispatch(len(specs))
        claims = [await self.ledger.claim(job.spec.id, worker, 600) for job in jobs]
        assert all(isinstance(one, Claim) for one in claims), claims
        return [one for one in claims if isinstance(one, Claim)]

    async def finish(self, claim: Claim) -> None:
        job_id = claim.spec.id
        assert await self.ledger.finish(job_id, claim.token, make_result(job_id), {})

    async def end(self, *ids: str) -> None:
        for job_id in ids:
            await self.ledger.cancel(job_id)

    async def queued(self) -> int:
        return (await self.ledger.state_counts()).states.get("queued", 0)


@pytest.fixture
async def ledger_place(redis_url: str) -> AsyncIterator[Place]:
    async with connect(redis_url) as redis:
        place = Place(redis)
        await place.ledger.register(WORKER, 600, AdmissionPolicy(tree_jobs=1_000), 1)
        yield place


async def test_a_submission_costs_a_few_commands_a_job_and_no_call_takes_more_than_fifty(
    ledger_place: Place,
) -> None:
    specs = [
        make_spec(agent=f"a{n}", owner="ann", tenant="t", idempotency_key=f"k{n}")
        for n in range(200)
    ]

    await ledger_place.ledger.submit([make_spec()])  # loads the script
    cost = await ledger_place.cost(ledger_place.ledger.submit(specs, "pool"))
    again = await ledger_place.cost(ledger_place.ledger.submit(specs, "pool"))

    reads_before = len(specs)  # the client asks which of them are known
    assert cost.calls == again.calls == len(specs) / store.SUBMIT_BATCH == 4
    assert cost.commands <= 14 * len(specs) + reads_before
    assert again.commands <= 2 * len(specs) + reads_before


async def test_a_call_takes_fewer_jobs_with_long_texts(ledger_place: Place) -> None:
    specs = [make_spec("x" * 90_000) for _ in range(11)]

    await ledger_place.ledger.submit([make_spec()])  # loads the script
    cost = await ledger_place.cost(ledger_place.ledger.submit(specs))

    assert cost.calls == 3, "five, five and one"
    assert await ledger_place.queued() == 12


async def test_what_a_worker_asks_while_it_is_idle_costs_the_same_with_many_workers_and_classes(
    ledger_place: Place,
) -> None:
    idle = make_worker("idle", agents=("a",))
    await ledger_place.ledger.register(WORKER, 0)

    async def look() -> None:
        """What it asks in two seconds."""
        await ledger_place.ledger.register(idle, 600)
        await ledger_place.ledger.reap()
        await ledger_place.ledger.dispatch(64)

    await look()
    alone = await ledger_place.cost(look())
    for number in range(60):
        one = make_worker(f"w{number}", host=f"h{number}", agents=(f"b{number}", "b"))
        await ledger_place.ledger.register(one, 600)
    await ledger_place.ledger.submit(
        [make_spec(agent=f"nobody-has-{n}", tenant=f"t{n}") for n in range(90)]
    )
    while await ledger_place.redis.zcard("fanout:dispatch:ready"):
        await look()
    await look()
    among_many = await ledger_place.cost(look())

    assert among_many.calls == alone.calls
    assert among_many.commands <= alone.commands + 5


async def test_a_slot_of_a_tenant_with_many_classes_costs_little_more_than_one_command_a_class(
    ledger_place: Place,
) -> None:
    policy = AdmissionPolicy(tree_jobs=1_000, tenant_jobs=1)
    await ledger_place.ledger.register(WORKER, 600, policy, 2)
    (claim,) = await ledger_place.run(make_spec(agent="first"))
    await ledger_place.ledger.submit([make_spec(agent=f"a{n}") for n in range(300)])
    while await ledger_place.ledger.dispatch(10):
        pass
    assert await ledger_place.redis.smembers(KEYS.full_tenants)

    cost = await ledger_place.cost(ledger_place.finish(claim))

    assert cost.commands <= 300 + OF_A_CALL
    assert len(await ledger_place.ledger.dispatch(10)) == 1


async def test_a_slot_of_a_tree_with_many_classes_costs_a_few_commands_a_class(
    ledger_place: Place,
) -> None:
    policy = AdmissionPolicy(tree_jobs=1)
    await ledger_place.ledger.register(WORKER, 600, policy, 2)
    (claim,) = await ledger_place.run(make_spec(agent="first", root_id="tree"))
    await ledger_place.ledger.submit([make_spec(agent=f"a{n}", root_id="tree") for n in range(300)])
    while await ledger_place.ledger.dispatch(10):
        pass
    await ledger_place.ledger.dispatch(10)
    assert await ledger_place.redis.smembers(KEYS.full_trees)

    cost = await ledger_place.cost(ledger_place.finish(claim))

    assert cost.commands <= 2 * 300 + OF_A_CALL
    assert len(await ledger_place.ledger.dispatch(10)) == 1


async def test_a_job_with_many_children_ends_with_as_few_commands_as_any_and_they_are_cancelled(
    ledger_place: Place,
) -> None:
    parent = make_spec()
    (claim,) = await ledger_place.run(parent)
    child = {"parent_id": parent.id, "root_id": parent.id, "depth": 1}
    ids = await ledger_place.ledger.submit([make_spec(**child) for _ in range(400)])

    ended = await ledger_place.cost(ledger_place.finish(claim))
    cancelled = await ledger_place.cost(ledger_place.ledger.reap())

    assert ended.commands <= OF_A_CALL
    assert cancelled.calls >= len(ids) / store.CANCEL_BATCH
    assert cancelled.of_a_call <= OF_A_CALL * store.CANCEL_BATCH
    assert set(await ledger_place.ledger.states(ids)) == {"cancelled"}


async def test_a_tree_of_any_size_is_evicted_in_parts_and_as_a_whole(
    ledger_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "EVICT_LOOKS", 40)
    large = await ledger_place.ledger.submit([make_spec(root_id="large") for _ in range(150)])
    other = await ledger_place.ledger.submit([make_spec(root_id="other") for _ in range(3)])
    await ledger_place.end(*large, *other)

    cost = await ledger_place.cost(
        ledger_place.ledger.evict("all", jobs=1, bytes_=0, min_kept_seconds=-60)
    )

    assert cost.calls >= 150 / 40
    assert cost.of_a_call <= 3 * 40 + OF_A_CALL
    assert set(await ledger_place.ledger.states(large)) == {None}
    assert set(await ledger_place.ledger.states(other)) == {"cancelled"}


async def test_a_tree_of_any_size_is_kept_for_one_job_that_has_not_ended(
    ledger_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "EVICT_LOOKS", 40)
    large = await ledger_place.ledger.submit([make_spec(root_id="large") for _ in range(150)])
    other = await ledger_place.ledger.submit([make_spec(root_id="other") for _ in range(3)])
    await ledger_place.end(*large[1:], *other)

    async def evict() -> None:
        assert await ledger_place.ledger.evict("all", jobs=200, bytes_=0, min_kept_seconds=-60) == 3

    cost = await ledger_place.cost(evict())

    assert cost.of_a_call <= 3 * 40 + OF_A_CALL
    assert cost.calls <= 12, "it is known of its other jobs that the tree is kept"
    assert set(await ledger_place.ledger.states(large)) == {"queued", "cancelled"}
    assert set(await ledger_place.ledger.states(other)) == {None}


async def test_one_call_of_the_reaper_does_its_maximum_of_all_that_has_lapsed(
    ledger_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "REAP_BATCH", 10)
    for number in range(10):
        await ledger_place.ledger.register(make_worker(f"w{number}"), 600)
    await ledger_place.ledger.submit([make_spec(root_id="tree") for _ in range(20)])
    jobs = await ledger_place.ledger.dispatch(20)
    for key in (KEYS.leases, KEYS.workers, "fanout:dispatch:workers"):
        names = await ledger_place.redis.zrange(key, 0, -1)
        await ledger_place.redis.zadd(key, dict.fromkeys(names, 1), xx=True)

    cost = await ledger_place.cost(ledger_place.ledger.reap())

    assert len(jobs) == 20
    assert cost.calls >= (20 + 11 + 11) / 10
    assert cost.of_a_call <= 10 * 60 + OF_A_CALL
    assert await ledger_place.redis.zcard("fanout:dispatch:workers") == 0
    assert await ledger_place.queued() == 20


async def test_what_was_sent_to_a_worker_that_ends_is_taken_back_in_parts(
    ledger_place: Place,
) -> None:
    ids = await ledger_place.ledger.submit([make_spec(root_id="tree") for _ in range(120)])
    assert len(await ledger_place.ledger.dispatch(200)) == 120
    await ledger_place.ledger.register(make_worker("other", concurrency=200), 600)

    cost = await ledger_place.cost(ledger_place.ledger.register(WORKER, 0))
    await ledger_place.ledger.reap()
    jobs = await ledger_place.ledger.dispatch(200)

    assert cost.commands <= 50 * 60 + OF_A_CALL, "of fifty jobs"
    assert {job.spec.id: job.worker for job in jobs} == dict.fromkeys(ids, "other")


async def test_a_higher_limit_lets_all_trees_take_turns_again_in_parts(ledger_place: Place) -> None:
    await ledger_place.ledger.register(WORKER, 600, AdmissionPolicy(tree_jobs=1), 2)
    for _ in range(2):
        await ledger_place.ledger.submit([make_spec(root_id=f"r{n}") for n in range(120)])
    while await ledger_place.ledger.dispatch(200):
        pass
    assert await ledger_place.redis.scard(KEYS.full_trees) == 120

    higher = ledger_place.ledger.register(WORKER, 600, AdmissionPolicy(tree_jobs=2), 3)
    cost = await ledger_place.cost(higher)
    await ledger_place.ledger.reap()

    assert cost.commands <= 50 * 15 + OF_A_CALL, "of fifty trees"
    assert len(await ledger_place.ledger.dispatch(200)) == 120
