"""What the ledger ends by itself.

Jobs whose time runs out while they wait, and cancels that nobody hears.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from fakeredis import FakeAsyncRedis

from fanout.orchestrator.approvals import ApprovalAnswer
from fanout.orchestrator.jobs.approvals import Approval
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType, Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger
from tests.builders import make_result, make_spec, make_worker
from tests.waits import until_reaped

WORKER = make_worker()
LEASE_SECONDS = 30.0


async def claimed(ledger: Ledger) -> Claim:
    (job,) = await ledger.dispatch(1)
    claim = await ledger.claim(job.spec.id, WORKER, LEASE_SECONDS)
    assert isinstance(claim, Claim), claim
    return claim


async def running(ledger: Ledger, **fields: Any) -> Claim:
    await ledger.submit([make_spec(**fields)])
    return await claimed(ledger)


def children_of(parent: JobSpec, count: int) -> list[JobSpec]:
    return [
        make_spec(id=f"{parent.id}-{n}", root_id=parent.root_id, parent_id=parent.id, depth=1)
        for n in range(count)
    ]


async def parked(
    ledger: Ledger, seconds: float, children: int = 1, *approvals: Approval
) -> JobSpec:
    claim = await running(ledger)
    specs = children_of(claim.spec, children)
    await ledger.park(claim.spec.id, claim.token, approvals, specs, timeout_seconds=seconds)
    return claim.spec


def asked(name: str) -> Approval:
    return Approval(
        id=name, job_id="j", agent="a", call_id="c", tool="execute", arguments={}, decisions=("approve",),
        sha256="0" * 64,
    )  # fmt: skip


async def state_of(ledger: Ledger, job_id: str) -> JobState:
    return (await ledger.get(job_id)).state


async def test_a_job_that_waits_for_children_beyond_its_time_is_timed_out_with_all_below_it(
    ledger: Ledger,
) -> None:
    spec = await parked(ledger, 0.1, 2)
    child = await claimed(ledger)
    (grandchild,) = children_of(child.spec, 1)
    await ledger.park(child.spec.id, child.token, [], [grandchild], timeout_seconds=60)
    await asyncio.sleep(0.15)
    assert (await ledger.reap()).states == {}, "nothing below it runs"
    claims: dict[str, Claim] = {}
    while grandchild.id not in claims:
        claim = await claimed(ledger)
        claims[claim.spec.id] = claim

    reaped = await until_reaped(ledger)

    assert (reaped.states, reaped.lost) == ({spec.id: "timed_out"}, {}), "no worker had it"
    result = await ledger.result(spec.id)
    assert result is not None
    assert result.error is not None
    assert (result.error.type, result.error.message) == (
        "DeadlineExceeded",
        "The job's time limit of 0.1 s is used up (limits.timeout_seconds).",
    )
    assert result.execution_seconds >= 0.1
    assert await state_of(ledger, child.spec.id) is JobState.CANCELLED
    if f"{spec.id}-1" not in claims:
        assert await state_of(ledger, f"{spec.id}-1") is JobState.CANCELLED
    for job_id, claim in claims.items():
        told = await ledger.beat({job_id: claim.token}, LEASE_SECONDS)
        assert told == {job_id: "cancel"}
    assert (await ledger.reap()).states == {}


async def test_the_time_of_waiting_for_children_is_gone_for_the_next_attempt(
    ledger: Ledger,
) -> None:
    began = time.monotonic()
    spec = await parked(ledger, 60)
    child = await claimed(ledger)
    await asyncio.sleep(0.2)
    await ledger.finish(child.spec.id, child.token, make_result(child.spec.id), {})
    waited = time.monotonic() - began
    await asyncio.sleep(0.2)  # queued: this does not count

    again = await claimed(ledger)

    assert again.spec.id == spec.id
    assert 0.2 <= again.ran_seconds < waited + 0.2


async def test_while_a_person_is_awaited_the_time_stands_still_and_then_runs_for_the_children(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    spec = await parked(ledger, 0.1, 1, asked("yes-or-no"))
    await claimed(ledger)
    await asyncio.sleep(0.15)
    assert (await ledger.reap()).states == {}

    await ledger.answer("yes-or-no", ApprovalAnswer(decision="approve"))
    assert await state_of(ledger, spec.id) is JobState.WAITING
    assert await redis.zscore("fanout:deadlines", spec.id) is not None

    assert (await until_reaped(ledger)).states == {spec.id: "timed_out"}


async def test_a_cancel_that_no_worker_hears_is_carried_out_by_the_reaper(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.orchestrator.jobs.store.ledger.CANCEL_HEARD_SECONDS", 0.05)
    frozen, asked, awake = [await running(ledger) for _ in range(3)]
    for claim in (frozen, asked, awake):
        await ledger.cancel(claim.spec.id)
    # One that is frozen while its heartbeat is on its way has been told, and has not heard it.
    for claim in (asked, awake, awake):
        told = await ledger.beat({claim.spec.id: claim.token}, LEASE_SECONDS)
        assert told == {claim.spec.id: "cancel"}
    await asyncio.sleep(0.1)

    reaped = await ledger.reap()

    assert reaped.states == {frozen.spec.id: "cancelled", asked.spec.id: "cancelled"}
    assert reaped.lost.keys() == reaped.states.keys()
    late = make_result(frozen.spec.id)
    assert not await ledger.finish(frozen.spec.id, frozen.token, late, {})
    assert await ledger.finish(awake.spec.id, awake.token, make_result(awake.spec.id), {})


@pytest.mark.parametrize("end", ["cancelled", "succeeded", "cancel asked"])
async def test_a_job_whose_parent_has_ended_ends_with_it(
    ledger: Ledger, redis: FakeAsyncRedis, end: str
) -> None:
    claim = await running(ledger)
    if end == "succeeded":
        await ledger.finish(claim.spec.id, claim.token, make_result(claim.spec.id), {})
    else:
        await ledger.cancel(claim.spec.id)
    if end == "cancelled":
        await ledger.release(claim.spec.id, claim.token, "why")
    (orphan,) = children_of(claim.spec, 1)

    assert await ledger.submit([orphan, orphan]) == [orphan.id, orphan.id]

    result = await ledger.result(orphan.id)
    assert result is not None
    assert result.error is not None
    assert (result.state, result.error.type) == (JobState.CANCELLED, "JobCancelled")
    assert await ledger.dispatch(9) == []


@pytest.mark.parametrize("first", ["cancel", "park"])
async def test_a_parent_that_is_cancelled_when_it_parks_leaves_no_orphan(
    ledger: Ledger, first: str
) -> None:
    claim = await running(ledger)
    children = children_of(claim.spec, 3)
    if first == "cancel":
        await ledger.cancel(claim.spec.id)
    state = await ledger.park(claim.spec.id, claim.token, [], children, timeout_seconds=60)
    if first == "park":
        await ledger.cancel(claim.spec.id)

    assert state is (JobState.CANCELLED if first == "cancel" else JobState.WAITING)
    assert await ledger.ids(live_only=True) == []
    assert len(await ledger.ids()) == (1 if first == "cancel" else 4)


@pytest.mark.slow
async def test_a_thousand_jobs_are_cancelled_in_pages(
    ledger: Ledger, redis: FakeAsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = await parked(ledger, 600)
    below = children_of(make_spec(id=f"{root.id}-0", root_id=root.id), 1000)
    await ledger.submit(below)
    sizes = []
    page = ledger._cancel_some

    async def counted(job_id: str) -> tuple[str | None, int]:
        before = await redis.scard(Keys().live)
        answer = await page(job_id)
        sizes.append(before - await redis.scard(Keys().live))
        return answer

    monkeypatch.setattr(ledger, "_cancel_some", counted)

    await ledger.cancel(root.id)

    assert await ledger.ids(live_only=True) == []
    assert max(sizes) <= 50
    assert sum(sizes) == 1002


async def test_a_cancel_whose_caller_died_is_finished_by_the_reaper(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, redis: FakeAsyncRedis
) -> None:
    root = await parked(ledger, 600, 3)
    monkeypatch.setattr("fanout.orchestrator.jobs.store.ledger.CANCEL_BATCH", 1)
    await ledger._cancel_some(root.id)
    assert len(await ledger.ids(live_only=True)) == 3

    await ledger.reap()

    assert await ledger.ids(live_only=True) == []
    events = await Journal(redis, Keys()).read(root.id)
    assert [event.type for event in events].count(EventType.CHILD_FINISHED) == 0
