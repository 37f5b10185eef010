"""Limits, turns and lanes of admission, one script at a time, on fakeredis with real Lua."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fakeredis import FakeAsyncRedis

from fanout.orchestrator.jobs import versions
from fanout.orchestrator.jobs.policy import AdmissionPolicy, TenantShare
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger
from fanout.orchestrator.jobs.store.stored import Submission, submission
from fanout.orchestrator.jobs.store.waiting import Workforce, occupancy, waiting_reason
from tests.builders import make_result, make_spec, make_worker

WORKER = make_worker(concurrency=100)
KEYS = Keys()
NEXT = versions.WIRE_NEWEST + 1


async def submitted(ledger: Ledger, name: str, count: int, **fields: Any) -> list[str]:
    return await ledger.submit(
        [make_spec(f"{name}{n}", **{"root_id": name, **fields}) for n in range(count)]
    )


async def dispatched(ledger: Ledger, most: int = 100) -> list[str]:
    return [job.spec.description for job in await ledger.dispatch(most)]


async def finish(ledger: Ledger, job_id: str) -> None:
    claim = await ledger.claim(job_id, WORKER, 10)
    assert isinstance(claim, Claim), claim
    await ledger.finish(job_id, claim.token, make_result(job_id), {})


async def reason(ledger: Ledger, redis: FakeAsyncRedis, job_id: str) -> str | None:
    record = await ledger.get(job_id)
    return waiting_reason(
        record, await occupancy(redis, KEYS, [record], Workforce(await ledger.workers()))
    )


def speaks(monkeypatch: pytest.MonkeyPatch, wire: int, *, of: str) -> None:
    """This release reads up to that wire version; one tree's specifications are stored in it."""

    def made(spec: JobSpec) -> Submission:
        return submission(spec)._replace(wire=wire if spec.root_id == of else 1)

    monkeypatch.setattr("fanout.orchestrator.jobs.store.ledger.submission", made)
    monkeypatch.setattr("fanout.orchestrator.jobs.versions.WIRE_NEWEST", wire)


async def test_tenants_come_in_turn_by_their_weight(ledger: Ledger) -> None:
    await ledger.register(WORKER, 60, AdmissionPolicy(tenants={"a": TenantShare(weight=3)}))
    for tenant in "ab":
        await submitted(ledger, tenant, 60, tenant=tenant)

    order = "".join(name[0] for name in await dispatched(ledger, 40))

    assert order.count("a") == 30
    assert all(2 <= order[first : first + 4].count("a") <= 4 for first in range(0, 40, 4))


async def test_a_tenant_that_stays_away_saves_nothing_up(ledger: Ledger) -> None:
    await submitted(ledger, "a", 50, tenant="a")
    await dispatched(ledger, 30)
    await submitted(ledger, "b", 20, tenant="b")

    order = "".join(name[0] for name in await dispatched(ledger, 10))

    assert order.count("b") == 5


async def test_a_tenant_that_asks_for_one_at_a_time_gets_no_more_than_its_share(
    ledger: Ledger,
) -> None:
    await submitted(ledger, "a", 50, tenant="a")
    order = ""
    for number in range(20):
        await submitted(ledger, f"b{number}-", 1, tenant="b")
        order += "".join(name[0] for name in await dispatched(ledger, 1))

    assert 9 <= order.count("b") <= 11


async def test_new_trees_do_not_starve_an_old_one(ledger: Ledger) -> None:
    await submitted(ledger, "old", 20)
    order = []
    for number in range(20):
        await submitted(ledger, f"new{number}-", 1)
        order += [name[:3] for name in await dispatched(ledger, 1)]

    assert order.count("old") >= 4, "each served one makes place for a new one, yet its turn comes"


async def test_a_tenant_at_its_limit_waits_and_others_go_on(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    await ledger.register(
        WORKER, 60, AdmissionPolicy(tenant_jobs=3, tenants={"a": TenantShare(jobs=2)})
    )
    first, _, waits, _ = await submitted(ledger, "a", 4, tenant="a")
    await submitted(ledger, "b", 4, tenant="b")

    assert sorted(await dispatched(ledger)) == ["a0", "a1", "b0", "b1", "b2"]
    assert await dispatched(ledger) == []
    assert await reason(ledger, redis, waits) == "its tenant's limit (2 of 2 jobs run)"
    await finish(ledger, first)
    assert await dispatched(ledger) == ["a2"]


async def test_an_agent_at_its_limit_blocks_neither_its_tree_nor_others(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    await ledger.register(WORKER, 60, AdmissionPolicy(agents={"slow": 2}))
    first, *_, waits = await submitted(ledger, "a", 3, agent="slow", priority=5)
    await submitted(ledger, "x", 2, root_id="a")
    await submitted(ledger, "b", 1, agent="slow")

    assert sorted(await dispatched(ledger)) == ["a0", "b0", "x0", "x1"]
    assert await reason(ledger, redis, waits) == "its agent's limit (2 of 2 jobs run)"
    await finish(ledger, first)
    assert await dispatched(ledger) == ["a1"]


async def test_the_best_of_a_trees_lanes_goes_first(ledger: Ledger) -> None:
    for name, agent, priority in (
        ("low", "x", 0),
        ("high", "y", 9),
        ("middle", "x", 5),
        ("late", "y", 0),
    ):
        await submitted(ledger, name, 1, root_id="t", agent=agent, priority=priority)

    assert await dispatched(ledger) == ["high0", "middle0", "low0", "late0"]


async def test_a_parked_job_that_comes_back_goes_before_newer_ones_of_its_tree(
    ledger: Ledger,
) -> None:
    (old,) = await submitted(ledger, "old", 1, root_id="t")
    await dispatched(ledger)
    claim = await ledger.claim(old, WORKER, 10)
    assert isinstance(claim, Claim)
    await submitted(ledger, "new", 3, root_id="t")
    assert await ledger.park(old, claim.token, []) is JobState.QUEUED

    assert await dispatched(ledger, 1) == ["old0"]


async def test_what_lapses_gives_every_place_back(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.orchestrator.jobs.store.ledger.TRANSIT_SECONDS", 0.02)
    policy = AdmissionPolicy(tenant_jobs=2, agents={"general-purpose": 2}, tree_jobs=2)
    await ledger.register(make_worker(concurrency=2), 60, policy)
    first, second = await submitted(ledger, "a", 2)
    await ledger.dispatch(10)
    await ledger.claim(first, WORKER, 0.02)
    await asyncio.sleep(0.05)
    assert await dispatched(ledger) == []

    assert (await ledger.reap()).states == {first: "queued", second: "queued"}
    assert await dispatched(ledger) == ["a0", "a1"]


async def test_the_policy_is_that_of_the_worker_that_started_last(ledger: Ledger) -> None:
    await ledger.register(make_worker("new"), 60, AdmissionPolicy(tree_jobs=3), 2)
    await ledger.register(make_worker("old"), 60, AdmissionPolicy(tree_jobs=1), 1)
    await submitted(ledger, "a", 10)

    assert len(await dispatched(ledger)) == 3


async def test_a_limit_that_is_raised_lets_in_what_was_held_up_at_once(ledger: Ledger) -> None:
    low = AdmissionPolicy(tree_jobs=1, tenants={"b": TenantShare(jobs=1)})
    await ledger.register(WORKER, 60, low, 1)
    await submitted(ledger, "a", 3)
    for name in ("b", "c"):
        await submitted(ledger, name, 1, tenant="b")
    assert sorted(await dispatched(ledger)) == ["a0", "b0"]
    assert await dispatched(ledger) == []

    await ledger.register(WORKER, 60, AdmissionPolicy(), 2)

    assert sorted(await dispatched(ledger)) == ["a1", "a2", "c0"]


async def test_a_job_waits_for_a_worker_that_understands_it_and_holds_up_nobody(
    ledger: Ledger, redis: FakeAsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    speaks(monkeypatch, NEXT, of="new")
    (waits, *_) = await submitted(ledger, "new", 5)
    await submitted(ledger, "old", 1)

    assert await dispatched(ledger) == ["old0"]
    why = f"a newer worker: it needs wire version {NEXT}, the living workers know 1 to {NEXT - 1}"
    assert await reason(ledger, redis, waits) == why
    await ledger.register(make_worker("newer", concurrency=2, wire_newest=NEXT, draining=True), 60)
    assert await dispatched(ledger) == []
    await ledger.register(make_worker("newer", concurrency=2, wire_newest=NEXT), 60)
    assert await dispatched(ledger) == ["new0", "new1"], (
        "as many as the workers that understand them take"
    )


async def test_a_process_leaves_alone_what_it_does_not_read(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ledger.register(make_worker("newer", wire_newest=NEXT), 60)
    with monkeypatch.context() as newer:
        speaks(newer, NEXT, of="new")
        await submitted(ledger, "new", 1)
    await submitted(ledger, "old", 1)

    assert await dispatched(ledger) == ["old0"]
    monkeypatch.setattr("fanout.orchestrator.jobs.versions.WIRE_NEWEST", NEXT)
    assert await dispatched(ledger) == ["new0"]


async def test_a_dispatch_whose_answer_got_lost_is_asked_again_and_has_the_same_jobs(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submitted(ledger, "a", 3)
    script = ledger._scripts.registered["dispatch"]

    async def twice(*, keys: list[str], args: list[Any]) -> Any:
        await script(keys=keys, args=args)
        await ledger.claim((await ledger.ids())[0], WORKER, 10)
        return await script(keys=keys, args=args)

    monkeypatch.setitem(ledger._scripts.registered, "dispatch", twice)
    jobs = await ledger.dispatch(2)

    assert [(job.spec.description, job.number) for job in jobs] == [("a1", 1)], (
        "the first has arrived"
    )
    monkeypatch.setitem(ledger._scripts.registered, "dispatch", script)
    assert await dispatched(ledger) == ["a2"]


async def test_what_cannot_be_read_fails_alone_and_in_words(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    good, garbage, wrong, also_good = await submitted(ledger, "a", 4)
    await redis.hset(KEYS.job(garbage), "spec", "{no json, a secret")
    await redis.hset(KEYS.job(wrong), "spec", '{"description": "a secret", "priority": "a secret"}')
    assert (
        await ledger.get(garbage)
    ).description == "(its specification cannot be read by this release)"

    assert [job.spec.id for job in await ledger.dispatch(10)] == [good, also_good]

    for job_id, sentence in (
        (garbage, "cannot be read: submit"),
        (wrong, "cannot be read (at priority)"),
    ):
        result = await ledger.result(job_id)
        assert result is not None
        assert result.error is not None
        assert sentence in result.error.message
        assert "secret" not in result.model_dump_json()
        assert (await ledger.get(job_id)).state is JobState.FAILED


async def test_a_job_on_its_way_says_so(ledger: Ledger, redis: FakeAsyncRedis) -> None:
    (job_id,) = await submitted(ledger, "a", 1)
    assert await reason(ledger, redis, job_id) == "its turn"
    await dispatched(ledger)

    assert await reason(ledger, redis, job_id) == "the worker that it was sent to"


async def test_a_full_tree_and_no_worker_are_told(ledger: Ledger, redis: FakeAsyncRedis) -> None:
    await ledger.register(WORKER, 60, AdmissionPolicy(tree_jobs=1))
    _, waits = await submitted(ledger, "a", 2)
    await dispatched(ledger)

    assert await reason(ledger, redis, waits) == "its tree's limit (1 of 1 jobs run)"
    await ledger.register(WORKER, 0)
    assert await reason(ledger, redis, waits) == "a worker: none is running"


async def test_a_draining_workers_jobs_take_no_place_on_others(ledger: Ledger) -> None:
    ids = await submitted(ledger, "a", 100, root_id="b")
    await ledger.register(make_worker(concurrency=2), 60, AdmissionPolicy(tree_jobs=100))
    for job in await ledger.dispatch(2):
        await ledger.claim(job.spec.id, WORKER, 10)
    await ledger.register(make_worker(concurrency=2, draining=True), 60)
    await ledger.register(make_worker("w2", concurrency=2), 60)

    assert len(await dispatched(ledger)) == 2
    assert ids


def test_a_policy_of_a_newer_release_is_read_as_far_as_it_is_known() -> None:
    policy = AdmissionPolicy(tree_jobs=3, tenants={"a": TenantShare(weight=2)}, agents={"x": 1})
    newer = (
        policy.stored().replace("{", '{"more": 1, ', 1).replace('"weight"', '"extra": 2, "weight"')
    )

    assert AdmissionPolicy.read(newer) == policy


async def test_a_job_waits_for_a_worker_that_knows_its_agent_and_holds_up_nobody(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    knows_one = make_worker("w1", concurrency=2, agents=("general-purpose",))
    await ledger.register(knows_one, 60)
    (new,) = await submitted(ledger, "new", 1, agent="linter")
    await submitted(ledger, "known", 2)

    assert await dispatched(ledger) == ["known0", "known1"]
    assert await reason(ledger, redis, new) == "agent linter, which no worker has read yet"

    await ledger.register(
        make_worker("w2", concurrency=1, agents=("general-purpose", "linter")), 60
    )
    assert await dispatched(ledger) == ["new0"]
    refusal = "agent linter: this worker knows general-purpose"
    assert await ledger.claim(new, knows_one, 10) == refusal
    assert await dispatched(ledger) == ["new0"]
    assert await ledger.claim(new, knows_one, 10) == refusal  # its journal says so already
    events = await Journal(redis, KEYS).read(new)
    told = f"{refusal}; it waits for agent linter, which no worker has read yet"
    assert [event.data.get("reason") for event in events] == [None, told]
    record = await ledger.get(new)
    assert (record.state, record.attempt) == (JobState.QUEUED, 0)


async def test_an_agent_fills_no_more_places_than_those_who_know_it_have(ledger: Ledger) -> None:
    await ledger.register(make_worker("w1", concurrency=50, agents=("general-purpose",)), 60)
    both = ("general-purpose", "linter")
    await ledger.register(make_worker("w2", host="h2", concurrency=2, agents=both), 60)
    await submitted(ledger, "lint", 5, agent="linter")
    await submitted(ledger, "known", 3)

    assert sorted(await dispatched(ledger)) == ["known0", "known1", "known2", "lint0", "lint1"]
    assert await dispatched(ledger) == []


async def test_a_worker_of_a_release_that_tells_no_agents_is_sent_all(ledger: Ledger) -> None:
    await ledger.register(make_worker("w1", agents=()), 60)
    await submitted(ledger, "any", 1, agent="linter")

    assert await dispatched(ledger) == ["any0"]


async def test_what_comes_next_is_known_without_being_taken(ledger: Ledger) -> None:
    await ledger.register(WORKER, 60, AdmissionPolicy())
    first = await submitted(ledger, "a", 5)
    second = await submitted(ledger, "b", 5, tenant="b")

    upcoming = [job.id for job in await ledger.upcoming(6)]

    assert len(upcoming) == 6
    assert set(upcoming) <= {*first, *second}
    assert {job.spec.id for job in await ledger.dispatch(100)} == {*first, *second}
    assert await ledger.upcoming(6) == []
