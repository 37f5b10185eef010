"""Which worker a job is sent to, and what becomes of it when that one does not take it."""

from __future__ import annotations

from typing import Any

import pytest
from fakeredis import FakeAsyncRedis

from fanout.orchestrator.jobs import versions
from fanout.orchestrator.jobs.policy import AdmissionPolicy
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger, Reaped
from tests.builders import make_result, make_spec, make_worker
from tests.waits import eventually

WORKER = make_worker("w0", concurrency=4, agents=("general-purpose",), queue="q@w0")
KEYS = Keys()


async def bound(ledger: Ledger) -> dict[str, str]:
    """Dispatch, and return to which worker each job is sent."""
    return {job.spec.id: job.worker for job in await ledger.dispatch(100)}


async def claim(ledger: Ledger, job_id: str, **worker: Any) -> Claim | str:
    return await ledger.claim(job_id, make_worker(**worker), 60)


async def lapse(redis: FakeAsyncRedis, worker: str) -> None:
    """Let a worker's registration lapse, as that of one that was killed."""
    for key in (KEYS.workers, "fanout:dispatch:workers"):
        await redis.zadd(key, {worker: 1})


async def test_jobs_that_one_of_four_workers_can_run_are_sent_to_that_one_and_none_is_refused(
    ledger: Ledger,
) -> None:
    workers = {"w0": WORKER}
    for name, agents in (("w1", "general-purpose"), ("w2", "general-purpose"), ("w3", "linter")):
        workers[name] = make_worker(name, concurrency=16, agents=(agents,), queue=f"q@{name}")
        await ledger.register(workers[name], 60, AdmissionPolicy(tree_jobs=100))
    ids = await ledger.submit([make_spec(agent="linter") for _ in range(16)])

    jobs = await ledger.dispatch(100)
    claims = [await ledger.claim(job.spec.id, workers[job.worker], 60) for job in jobs]

    assert {job.spec.id: job.queue for job in jobs} == dict.fromkeys(ids, "q@w3")
    assert [one for one in claims if isinstance(one, str)] == []


async def test_the_worker_with_the_most_free_slots_gets_the_next_job(ledger: Ledger) -> None:
    await ledger.register(make_worker("w1", concurrency=2, agents=("general-purpose",)), 60)
    await ledger.submit([make_spec() for _ in range(6)])

    order = list((await bound(ledger)).values())

    assert sorted(order) == ["w0"] * 4 + ["w1"] * 2
    assert order[:2] == ["w0", "w0"]


@pytest.mark.parametrize("how", ["killed", "drains", "ends", "shrinks"])
async def test_what_was_sent_to_a_worker_that_takes_it_no_more_goes_to_another(
    how: str, ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    ids = await ledger.submit([make_spec() for _ in range(3)])
    assert set((await bound(ledger)).values()) == {"w0"}
    await redis.lpush("fanout:queue:q@w0", *ids)
    await ledger.register(make_worker("w1", concurrency=4), 60)

    match how:
        case "killed":
            await lapse(redis, "w0")
            await ledger.reap()
        case "drains":
            await ledger.register(make_worker("w0", draining=True, queue="q@w0"), 60)
        case "ends":
            await ledger.register(WORKER, 0)
        case "shrinks":
            await ledger.register(make_worker("w0", concurrency=0, queue="q@w0"), 60)

    assert await bound(ledger) == dict.fromkeys(ids, "w1")
    assert await redis.exists("fanout:queue:q@w0") == (how == "shrinks"), "nobody takes from it"
    assert {(await ledger.get(job_id)).attempt for job_id in ids} == {0}


@pytest.mark.parametrize("how", ["killed", "drains", "ends"])
async def test_messages_that_come_to_the_queue_of_a_worker_that_has_gone_are_deleted(
    how: str, ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    await ledger.register(WORKER, 60)
    if how == "killed":
        await lapse(redis, "w0")
        await ledger.reap()
    else:
        draining = how == "drains"
        await ledger.register(make_worker("w0", draining=draining, queue="q@w0"), 60)
    if how == "ends":
        await ledger.register(WORKER, 0)

    await redis.lpush("fanout:queue:q@w0", "sent late")
    await ledger.reap()
    assert not await redis.exists("fanout:queue:q@w0")

    await ledger.register(WORKER, 60)
    await redis.lpush("fanout:queue:q@w0", "sent to its successor")
    await ledger.reap()
    assert await redis.exists("fanout:queue:q@w0")
    assert not await redis.exists("fanout:dispatch:old_queues")


async def test_a_worker_that_is_lost_but_not_yet_reaped_is_sent_nothing(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    await ledger.submit([make_spec()])
    await lapse(redis, "w0")

    assert await bound(ledger) == {}
    await ledger.register(make_worker("w1"), 60)
    assert list((await bound(ledger)).values()) == ["w1"]


async def test_no_key_of_a_fleet_that_has_ended_stays(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    await ledger.register(make_worker("w1", pool="p", host_limit=1), 60)
    (job_id,) = await ledger.submit([make_spec()])
    ((_, worker),) = (await bound(ledger)).items()
    taken = await claim(ledger, job_id, name=worker)
    assert isinstance(taken, Claim)
    await ledger.finish(job_id, taken.token, make_result(job_id), {})
    for name in ("w0", "w1"):
        await lapse(redis, name)
    await ledger.reap()

    left = {key.removeprefix("fanout:dispatch:") for key in await redis.keys("fanout:dispatch:*")}
    left = {key for key in left if len(key) != 32}  # the answers to dispatches
    left -= {"old_queues"}  # until no message can come to them any more
    assert await redis.ttl("fanout:dispatch:old_queues") > 0
    assert left == {"compared", "memory", "state_counts", "stored_bytes", "stored_jobs"}


async def test_a_worker_that_got_a_job_from_elsewhere_leaves_its_own_to_others(
    ledger: Ledger,
) -> None:
    one = make_worker("w0", concurrency=1, agents=("general-purpose",), queue="q@w0")
    await ledger.register(one, 60)
    mine, other = await ledger.submit([make_spec(), make_spec()])
    assert await bound(ledger) == {mine: "w0"}
    await ledger.register(make_worker("w1", concurrency=1), 60)
    assert await bound(ledger) == {other: "w1"}

    assert isinstance(await ledger.claim(other, one, 60), Claim), "as earlier releases send it"

    assert await bound(ledger) == {mine: "w1"}


async def test_slots_that_an_earlier_release_has_freed_count_at_the_next_heartbeat(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    ids = await ledger.submit([make_spec() for _ in range(8)])
    sent = await bound(ledger)
    running, lost = list(sent)[:2]
    assert isinstance(await ledger.claim(running, WORKER, 60), Claim)
    await redis.srem("fanout:held:w0", running)  # finished by scripts that know no free slots
    await redis.hset(KEYS.job(lost), mapping={"dispatched": 0})  # and taken from its queue
    assert await bound(ledger) == {}

    await ledger.register(WORKER, 60)

    assert len(await bound(ledger)) == 2
    assert len(ids) == 8


async def test_a_job_that_an_earlier_release_has_sent_to_another_runs_on_when_the_first_ends(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    (job_id,) = await ledger.submit([make_spec()])
    assert await bound(ledger) == {job_id: "w0"}
    other = make_worker("w1")
    await ledger.register(other, 60)
    taken = await ledger.claim(job_id, other, 60)
    assert isinstance(taken, Claim)
    await redis.sadd("fanout:dispatch:bound:w0", job_id)  # its scripts leave that as it is
    await redis.hset(KEYS.job(job_id), "bound_to", "w0")

    await ledger.register(WORKER, 0)

    assert await ledger.beat({job_id: taken.token}, 60) == {job_id: "held"}
    assert await bound(ledger) == {}


async def test_a_class_that_an_earlier_release_has_entered_is_found_by_the_reaper(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    (job_id,) = await ledger.submit([make_spec()])
    await redis.delete("fanout:dispatch:ready")
    assert await bound(ledger) == {}

    await ledger.reap()

    assert await bound(ledger) == {job_id: "w0"}


async def test_one_reaper_acts_for_all_and_when_it_dies_another_does(ledger: Ledger) -> None:
    first, second = await ledger.reap(2), await ledger.reap(2)
    assert (first, second) == (Reaped(), None)

    await eventually(lambda: ledger.reap(2), lambda seen: seen is not None)


async def test_a_reaper_of_an_older_release_does_not_act_for_those_of_this_one(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(versions, "WIRE_NEWEST", versions.WIRE_OLDEST)
        assert await ledger.reap(60) == Reaped()
        assert await ledger.reap(60) is None

    assert await ledger.reap(60) == Reaped(), "the older one dispatches no jobs of this release"
    assert await ledger.reap(60) is None


async def test_more_lost_jobs_than_one_call_takes_are_all_requeued(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    await ledger.register(make_worker("w1", concurrency=200), 60, AdmissionPolicy(tree_jobs=200))
    ids = await ledger.submit([make_spec() for _ in range(120)])
    await bound(ledger)
    await redis.zadd(KEYS.leases, dict.fromkeys(ids, 1))

    assert (await ledger.reap()).states == dict.fromkeys(ids, JobState.QUEUED)


async def test_classes_that_nobody_runs_are_looked_at_once_and_again_when_somebody_does(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    await ledger.submit([make_spec(agent=f"a{number}") for number in range(150)])
    assert await bound(ledger) == {}
    assert not await redis.exists("fanout:dispatch:ready"), "no dispatch looks at them again"

    await ledger.register(make_worker("w1", agents=("a7", "a140"), pool="p"), 60)

    assert list((await bound(ledger)).values()) == ["w1", "w1"]


async def test_workers_that_all_differ_get_the_jobs_that_each_can_run(ledger: Ledger) -> None:
    for number in range(60):
        agents = ("general-purpose", f"a{number}")
        await ledger.register(make_worker(f"n{number}", concurrency=2, agents=agents), 60)
    wanted = {f"a{number}": f"n{number}" for number in range(60)}
    ids = await ledger.submit([make_spec(agent=agent, id=agent) for agent in wanted])

    assert await bound(ledger) == wanted
    assert len(ids) == 60
    await ledger.submit([make_spec() for _ in range(64)])
    assert len(await bound(ledger)) == 64, "one on each of them, and four on the first"
    assert await bound(ledger) == {}
