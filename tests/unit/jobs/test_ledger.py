"""The ledger's promises, one script at a time, on fakeredis with real Lua."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from fakeredis import FakeAsyncRedis
from fakeredis.commands_mixins import server_mixin

from fanout.orchestrator.jobs.failures import InvalidJob, MessagesUnread, UnknownJob
from fanout.orchestrator.jobs.policy import AdmissionPolicy
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType, Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim, Dispatched, Ledger
from fanout.orchestrator.jobs.timeline import PhaseKind
from fanout.workers.attempt.attempt import UNREAD_CHARACTERS, commit
from tests.builders import make_result, make_spec, make_worker
from tests.waits import until_reaped

LEASE = 10.0
WORKER = make_worker()


async def dispatch_all(ledger: Ledger) -> list[str]:
    return [job.spec.id for job in await ledger.dispatch(100)]


async def claimed(ledger: Ledger, job_id: str, lease: float = LEASE) -> Claim:
    claim = await ledger.claim(job_id, WORKER, lease)
    assert isinstance(claim, Claim), claim
    return claim


async def running(ledger: Ledger, lease: float = LEASE, **fields: object) -> Claim:
    (job_id,) = await ledger.submit([make_spec(**fields)])
    await dispatch_all(ledger)
    return await claimed(ledger, job_id, lease)


async def test_submitting_twice_is_one_job(ledger: Ledger) -> None:
    spec = make_spec()

    ids = await ledger.submit([spec, spec])

    assert ids == [spec.id, spec.id]
    assert await ledger.ids() == [spec.id]


async def test_an_idempotency_key_finds_the_job_that_has_it_for_its_tenant_only(
    ledger: Ledger,
) -> None:
    first = make_spec(idempotency_key="k")
    again = make_spec(idempotency_key="k")
    other_tenant = make_spec(idempotency_key="k", tenant="other")

    ids = await ledger.submit([first, again, other_tenant])

    assert ids == [first.id, first.id, other_tenant.id]


async def test_a_record_holds_the_specification_and_where_the_job_stands(ledger: Ledger) -> None:
    spec = make_spec("count the files", labels={"team": "x"}, priority=3)

    await ledger.submit([spec])
    record = await ledger.get(spec.id)

    assert (record.description, record.labels, record.priority) == (
        "count the files",
        {"team": "x"},
        3,
    )
    assert (record.state, record.attempt, record.root_id) == (JobState.QUEUED, 0, spec.id)


async def test_without_a_worker_nothing_is_dispatched(
    redis: FakeAsyncRedis,
) -> None:
    ledger = Ledger(redis, Keys())
    await ledger.submit([make_spec()])

    assert await ledger.dispatch(10) == []


async def test_trees_are_served_in_turn(ledger: Ledger) -> None:
    big = [make_spec(f"a{number}", root_id="A") for number in range(20)]
    small = [make_spec(f"b{number}", root_id="B") for number in range(3)]
    await ledger.submit([*big, *small])

    order = [job.spec.description for job in await ledger.dispatch(100)]

    assert order == ["a0", "b0", "a1", "b1", "a2", "b2", "a3", "a4"]


async def test_a_higher_priority_goes_first_within_a_tree(ledger: Ledger) -> None:
    specs = [make_spec(str(priority), root_id="A", priority=priority) for priority in (-5, 0, 100)]
    await ledger.submit(specs)

    order = [job.spec.description for job in await ledger.dispatch(100)]

    assert order == ["100", "0", "-5"]


async def test_a_tree_at_its_limit_waits_until_one_of_its_jobs_ends(ledger: Ledger) -> None:
    await ledger.register(WORKER, 60, AdmissionPolicy(tree_jobs=2))
    await ledger.submit([make_spec(root_id="A") for _ in range(4)])

    first, second = await dispatch_all(ledger)
    assert await dispatch_all(ledger) == []
    claim = await claimed(ledger, first)
    await ledger.finish(first, claim.token, make_result(first), {})

    assert len(await dispatch_all(ledger)) == 1
    assert second


async def test_no_more_is_dispatched_than_the_workers_of_a_host_may_run(
    redis: FakeAsyncRedis,
) -> None:
    ledger = Ledger(redis, Keys())
    for name in ("w1", "w2"):
        await ledger.register(make_worker(name, concurrency=8, host_limit=10), 60)
    await ledger.submit([make_spec() for _ in range(30)])

    assert len(await dispatch_all(ledger)) == 10


async def test_a_full_host_refuses_a_claim_and_the_job_waits_on(redis: FakeAsyncRedis) -> None:
    ledger = Ledger(redis, Keys())
    full = make_worker("w1", concurrency=8, host_limit=1)
    for worker in (full, make_worker("w2", host="h2")):
        await ledger.register(worker, 60)
    first, second = await ledger.submit([make_spec(), make_spec()])
    await dispatch_all(ledger)
    await ledger.claim(first, full, LEASE)

    assert await ledger.claim(second, full, LEASE) == "host full"
    assert (await ledger.get(second)).state is JobState.QUEUED
    assert await dispatch_all(ledger) == [second]


async def test_a_second_message_for_a_job_claims_nothing(ledger: Ledger) -> None:
    claim = await running(ledger)

    assert await ledger.claim(claim.spec.id, WORKER, LEASE) == "running"


async def test_a_message_for_a_job_that_was_not_dispatched_claims_nothing(ledger: Ledger) -> None:
    (job_id,) = await ledger.submit([make_spec()])

    assert await ledger.claim(job_id, WORKER, LEASE) == "queued"
    assert await ledger.claim("nobody", WORKER, LEASE) == "unknown"


async def test_the_first_result_counts(ledger: Ledger) -> None:
    claim = await running(ledger)
    job_id = claim.spec.id

    assert await ledger.finish(job_id, claim.token, make_result(job_id, summary="first"), {})
    assert not await ledger.finish(job_id, claim.token, make_result(job_id, summary="second"), {})
    result = await ledger.result(job_id)
    assert result is not None
    assert result.summary == "first"


async def test_an_attempt_whose_lease_lapsed_can_neither_beat_nor_finish(ledger: Ledger) -> None:
    claim = await running(ledger, lease=0.05)
    job_id = claim.spec.id
    reaped = await until_reaped(ledger)
    assert reaped.states == {job_id: "queued"}
    await dispatch_all(ledger)
    second = await claimed(ledger, job_id)
    first_began, *_, second_began = [
        phase.begin
        for phase in (await ledger.get(job_id)).phases
        if phase.kind is PhaseKind.RUNNING
    ]
    assert first_began < reaped.lost[job_id] <= second_began

    assert second.attempt == 2
    assert await ledger.beat({job_id: claim.token}, LEASE) == {job_id: "lost"}
    assert not await ledger.finish(job_id, claim.token, make_result(job_id), {})
    assert await ledger.beat({job_id: second.token}, LEASE) == {job_id: "held"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time of day of Redis, in seconds, which stands until a test sets it."""
    clock = SimpleNamespace(now=time.time())
    monkeypatch.setattr(server_mixin, "time", SimpleNamespace(time=lambda: clock.now))
    return clock


async def test_a_lease_lapses_by_the_time_in_which_redis_works(
    ledger: Ledger, clock: SimpleNamespace
) -> None:
    held = await running(ledger, lease=60)
    silent = await running(ledger, lease=9, max_attempts=1)
    job_id = silent.spec.id

    for passed in (3600, -7200):  # Redis hung for an hour; the time of its machine was set back
        clock.now += passed
        assert (await ledger.reap()).states == {}
        assert await ledger.beat({job_id: silent.token}, 9) == {job_id: "held"}
    reaped: dict[str, str] = {}
    seconds = 0
    while not reaped:
        clock.now += 1
        seconds += 1
        reaped = (await ledger.reap()).states

    assert (reaped, seconds) == ({job_id: "failed"}, 10)
    assert (await ledger.get(held.spec.id)).state is JobState.RUNNING


async def test_a_lease_that_was_renewed_for_long_outlives_a_redis_that_hangs(
    ledger: Ledger, clock: SimpleNamespace
) -> None:
    claim = await running(ledger, lease=9)
    for _ in range(20):
        clock.now += 1
        await ledger.beat({claim.spec.id: claim.token}, 9)

    clock.now += 3600

    assert (await ledger.reap()).states == {}


async def test_the_lease_of_a_dead_worker_lapses_although_the_time_of_redis_was_set_back(
    ledger: Ledger, clock: SimpleNamespace
) -> None:
    claim = await running(ledger, lease=9)
    await ledger.reap()

    clock.now -= 7200
    reaped: dict[str, str] = {}
    for _ in range(70):  # the longest lease is a minute
        clock.now += 1
        reaped |= (await ledger.reap()).states

    assert reaped == {claim.spec.id: "queued"}


async def test_the_lease_of_a_worker_of_an_earlier_release_lapses_by_the_time_of_redis(
    ledger: Ledger, redis: FakeAsyncRedis, clock: SimpleNamespace
) -> None:
    claim = await running(ledger)
    job_id = claim.spec.id
    await redis.hdel(Keys().job(job_id), "lease_at", "lease_of")  # it does not write them

    clock.now += LEASE + 1

    assert (await ledger.reap()).states == {job_id: "queued"}


async def test_a_worker_that_ends_while_the_workers_are_listed_is_not_listed(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    await ledger.register(make_worker("living"), 60)
    await ledger.register(make_worker("ended"), 60)
    await redis.delete(Keys().worker("ended"))  # after its name was read

    assert "ended" not in [worker.name for worker in await ledger.workers()]


async def test_a_renewed_lease_does_not_lapse(ledger: Ledger) -> None:
    claim = await running(ledger, lease=0.2)
    await asyncio.sleep(0.1)
    await ledger.beat({claim.spec.id: claim.token}, LEASE)
    await asyncio.sleep(0.2)

    assert (await ledger.reap()).states == {}


async def test_a_job_whose_attempts_are_used_up_fails_in_words(ledger: Ledger) -> None:
    claim = await running(ledger, lease=0.05, max_attempts=1)

    assert (await until_reaped(ledger)).states == {claim.spec.id: "failed"}
    result = await ledger.result(claim.spec.id)
    assert result is not None
    assert result.error is not None
    assert result.error.type == "AttemptsUsedUp"


async def test_a_message_that_got_lost_is_dispatched_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.orchestrator.jobs.store.ledger.TRANSIT_SECONDS", 0.05)
    (job_id,) = await ledger.submit([make_spec()])
    await dispatch_all(ledger)

    reaped = await until_reaped(ledger)
    again: list[Dispatched] = await ledger.dispatch(10)

    assert (reaped.states, reaped.lost) == ({job_id: "queued"}, {}), "no worker had it"

    assert [(job.spec.id, job.number) for job in again] == [(job_id, 2)]


async def test_a_released_job_waits_again_without_a_used_up_attempt(ledger: Ledger) -> None:
    claim = await running(ledger)

    assert await ledger.release(claim.spec.id, claim.token, "its worker stops")
    record = await ledger.get(claim.spec.id)

    assert (record.state, record.attempt) == (JobState.QUEUED, 0)
    assert not await ledger.release(claim.spec.id, claim.token, "again")


async def test_a_failed_attempt_counts_and_the_last_one_is_not_repeated(ledger: Ledger) -> None:
    claim = await running(ledger, max_attempts=2)
    job_id = claim.spec.id
    assert await ledger.fail_attempt(job_id, claim.token, "SandboxDied")
    await dispatch_all(ledger)
    second = await claimed(ledger, job_id)

    assert second.attempt == 2
    assert not await ledger.fail_attempt(job_id, second.token, "SandboxDied")


async def test_cancelling_a_waiting_job_ends_it_at_once(ledger: Ledger) -> None:
    (job_id,) = await ledger.submit([make_spec()])

    assert await ledger.cancel(job_id) is JobState.QUEUED
    assert (await ledger.get(job_id)).state is JobState.CANCELLED
    assert await dispatch_all(ledger) == []
    assert await ledger.cancel(job_id) is JobState.CANCELLED


async def test_cancelling_a_running_job_tells_its_worker_with_the_next_beat(ledger: Ledger) -> None:
    claim = await running(ledger)

    assert await ledger.cancel(claim.spec.id) is JobState.RUNNING
    assert await ledger.beat({claim.spec.id: claim.token}, LEASE) == {claim.spec.id: "cancel"}


async def test_a_cancelled_job_whose_worker_dies_ends_cancelled(ledger: Ledger) -> None:
    claim = await running(ledger, lease=0.05)
    await ledger.cancel(claim.spec.id)

    assert (await until_reaped(ledger)).states == {claim.spec.id: "cancelled"}


async def test_cancelling_a_parent_cancels_all_below_it(ledger: Ledger) -> None:
    parent = make_spec(id="p")
    child = make_spec(id="c", root_id="p", parent_id="p", depth=1)
    grandchild = make_spec(id="g", root_id="p", parent_id="c", depth=2)
    await ledger.submit([parent, child, grandchild])

    await ledger.cancel("p")

    states = {record.id: record.state for record in await ledger.get_many(["p", "c", "g"])}
    assert set(states.values()) == {JobState.CANCELLED}


async def test_an_unknown_job_is_said_to_be_unknown(ledger: Ledger) -> None:
    with pytest.raises(UnknownJob, match="nobody"):
        await ledger.cancel("nobody")
    with pytest.raises(UnknownJob, match="nobody"):
        await ledger.get("nobody")


async def test_every_change_of_state_stands_in_the_journal(
    ledger: Ledger, journal: Journal
) -> None:
    claim = await running(ledger)
    await ledger.release(claim.spec.id, claim.token, "its worker stops")
    await dispatch_all(ledger)
    second = await claimed(ledger, claim.spec.id)
    await ledger.finish(claim.spec.id, second.token, make_result(claim.spec.id), {})

    events = await journal.read(claim.spec.id)

    states = [event.data["state"] for event in events]
    assert states == ["queued", "running", "queued", "running", "succeeded"]
    assert events[1].data["host"] == "h1"


async def test_a_journal_is_read_from_its_end_in_pages_that_miss_nothing(
    ledger: Ledger, journal: Journal
) -> None:
    [waiting] = await ledger.submit([make_spec()])
    assert await journal.read_before(waiting, None, 10) == await journal.read(waiting)
    assert await journal.read_before("nobody", None, 10) == []

    job_id = (await running(ledger)).spec.id
    for number in range(7):
        await journal.append(job_id, 1, EventType.LOG, {"text": str(number)})
    every = await journal.read(job_id)
    newest = await journal.read_before(job_id, None, 4)
    assert newest == every[-4:]
    earlier = await journal.read_before(job_id, newest[0].id, 4)
    assert earlier == every[-8:-4]
    assert await journal.read_before(job_id, every[0].id, 4) == []


async def test_the_journal_of_a_job_that_waits_takes_no_memory_and_is_read_all_the_same(
    ledger: Ledger, journal: Journal, redis: FakeAsyncRedis
) -> None:
    [job_id] = await ledger.submit([make_spec()])

    [first] = await journal.read(job_id)
    assert (first.type, first.data) == (EventType.JOB_STATE, {"state": "queued"})
    assert await journal.last(job_id) == first
    assert await journal.read(job_id, first.id) == []
    assert not await redis.exists(Keys().journal(job_id))

    await ledger.send(job_id, "hello")
    stored = await journal.read(job_id)
    assert [event.type for event in stored] == [EventType.JOB_STATE, EventType.MESSAGE]
    assert stored[0] == first
    assert await journal.read(job_id, first.id) == stored[1:]


async def test_the_journal_of_an_unknown_job_has_no_event(journal: Journal) -> None:
    assert await journal.read("nobody") == []
    assert await journal.last("nobody") is None


async def test_a_follower_sees_old_and_new_events_and_stops_at_the_end(
    ledger: Ledger, journal: Journal
) -> None:
    claim = await running(ledger)
    job_id = claim.spec.id

    async def go_on() -> None:
        await journal.append(job_id, 1, EventType.LOG, {"text": "half"}, "half way")
        await ledger.finish(job_id, claim.token, make_result(job_id), {})

    async with asyncio.timeout(60):
        work = asyncio.create_task(go_on())
        types = [event.type async for event in journal.follow(job_id)]
        await work
    await journal.close()

    assert types == ["job.state", "job.state", "log", "job.state"]


async def test_live_ids_are_those_that_have_not_ended(ledger: Ledger) -> None:
    first, second = await ledger.submit([make_spec(), make_spec()])
    await ledger.cancel(first)

    assert await ledger.ids(live_only=True) == [second]
    assert await ledger.ids() == [first, second]


async def test_a_worker_that_leaves_is_gone(ledger: Ledger) -> None:
    await ledger.register(WORKER, 0)

    assert await ledger.workers() == []


async def test_a_worker_tells_why_nothing_isolates_its_jobs(redis: FakeAsyncRedis) -> None:
    ledger = Ledger(redis, Keys())
    told = make_worker(draining=True, host_limit=3, why_local="No Docker engine answers.")
    await ledger.register(told, 60)

    assert await ledger.workers() == [told]


async def test_a_result_that_does_not_know_of_all_messages_is_not_committed(ledger: Ledger) -> None:
    claim = await running(ledger)
    job_id, result = claim.spec.id, make_result(claim.spec.id)
    for text in ("one", "two"):
        await ledger.send(job_id, text)

    with pytest.raises(MessagesUnread):
        await ledger.finish(job_id, claim.token, result, {}, messages=1)
    assert (await ledger.get(job_id)).state is JobState.RUNNING
    assert await ledger.finish(job_id, claim.token, result, {}, messages=2)


async def test_a_message_that_came_too_late_is_named_in_the_result(
    ledger: Ledger, journal: Journal
) -> None:
    claim = await running(ledger)
    job_id = claim.spec.id
    for text in ("read in time", "too late " + "x" * UNREAD_CHARACTERS):
        await ledger.send(job_id, text)

    assert await commit(ledger, journal, claim, make_result(job_id), {}, messages_read=1)

    result = await ledger.result(job_id)
    assert result is not None
    (unread,) = result.unread_messages
    assert unread.startswith("too late")
    assert len(unread) == UNREAD_CHARACTERS


async def test_a_job_takes_so_many_messages(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.orchestrator.jobs.store.ledger.MAX_MESSAGES", 2)
    claim = await running(ledger)
    for text in "ab":
        await ledger.send(claim.spec.id, text)

    with pytest.raises(InvalidJob, match="has had 2 messages"):
        await ledger.send(claim.spec.id, "c")


async def test_a_job_that_was_begun_waits_a_little_for_the_host_with_its_files(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = await running(ledger)
    other = make_worker("w2", host="h2")
    await ledger.register(other, 60)
    await ledger.release(claim.spec.id, claim.token, "its worker stops")
    await dispatch_all(ledger)

    assert await ledger.claim(claim.spec.id, other, LEASE) == "waits for its host"
    assert (await ledger.get(claim.spec.id)).state is JobState.QUEUED
    assert await dispatch_all(ledger) == [claim.spec.id]
    monkeypatch.setattr("fanout.orchestrator.jobs.store.ledger.HEAD_START_SECONDS", 0)
    assert isinstance(await ledger.claim(claim.spec.id, other, LEASE), Claim)


@pytest.mark.parametrize("own", [{"draining": True}, {"concurrency": 1}], ids=["ends", "is full"])
async def test_it_does_not_wait_for_a_host_that_takes_no_job(
    ledger: Ledger, own: dict[str, Any]
) -> None:
    claim, busy = await running(ledger), await running(ledger)
    assert busy
    other = make_worker("w2", host="h2")
    await ledger.register(other, 60)
    await ledger.release(claim.spec.id, claim.token, "its worker stops")
    await dispatch_all(ledger)
    await ledger.register(make_worker(**own), 60)  # what was sent to it waits for another
    assert await dispatch_all(ledger) == [claim.spec.id]

    assert isinstance(await ledger.claim(claim.spec.id, other, LEASE), Claim)
