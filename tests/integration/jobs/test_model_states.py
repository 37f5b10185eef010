"""What the fleet knows of its models, and the jobs that wait for them, on a real Redis."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from fanout.orchestrator.jobs.policy import AdmissionPolicy
from fanout.orchestrator.jobs.spec import JobSpec, Limits
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.journal import EventType, Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger, ModelWait
from fanout.orchestrator.jobs.store.model_states import ClosedModel, ModelState
from fanout.orchestrator.jobs.store.waiting import WaitingReasons
from tests.builders import make_result, make_spec, make_worker
from tests.waits import eventually

pytestmark = pytest.mark.redis

KEYS = Keys()
WORKER = make_worker(concurrency=100)
DAY = 86_400.0


class Fleet:
    """A ledger, and what its workers find out of the model `m` with the access `a`."""

    def __init__(self, redis: Redis) -> None:
        self.redis, self.ledger = redis, Ledger(redis, KEYS)
        self.models = self.ledger.models

    async def running(self, *specs: JobSpec) -> list[Claim]:
        if specs:
            await self.ledger.submit(specs)
        claims = []
        for job in await self.ledger.dispatch(100):
            claim = await self.ledger.claim(job.spec.id, WORKER, 600)
            assert isinstance(claim, Claim), claim
            claims.append(claim)
        return claims

    async def close(
        self,
        state: ModelState = ModelState.EXHAUSTED,
        request: str = "first",
        *,
        wait_seconds: float | None = 3600,
        access: str = "a",
        worked: bool = False,
        seconds: float | None = None,
    ) -> ClosedModel | None:
        return await self.models.close(
            access,
            "m",
            state,
            "has no quota left (429)",
            request=request,
            wait_seconds=wait_seconds,
            must_have_worked=worked,
            failed_for_seconds=seconds,
        )

    async def park(self, claim: Claim, most: float = DAY, **changes: Any) -> JobState | None:
        closed = ClosedModel("m", ModelState.EXHAUSTED, "has no quota left (429)", 0, "a")
        wait = ModelWait(closed, ("a",), most, most, was_answered=False)
        return await self.ledger.park_for_model(claim, replace(wait, **changes), "")

    async def due(self, access: str = "a") -> None:
        """Let the time come at which the model is tried again."""
        now = await self.ledger.now_ms()
        await self.redis.hset(KEYS.model_state(access), "until", now - 1)
        await self.redis.zadd(KEYS.models_closed, {access: now - 1})

    async def states(self, *ids: str) -> list[str | None]:
        return await self.ledger.states(ids)

    async def waiting(self) -> list[str]:
        return await self.redis.zrange(KEYS.model_waiting("a"), 0, -1)


@pytest.fixture
async def fleet(redis_url: str) -> AsyncIterator[Fleet]:
    async with connect(redis_url) as redis:
        fleet = Fleet(redis)
        await fleet.ledger.register(WORKER, 600, AdmissionPolicy(tree_jobs=1_000), 1)
        yield fleet


async def test_a_closed_model_is_asked_by_one_request_when_its_time_has_come(fleet: Fleet) -> None:
    assert await fleet.models.ask("a", "m", "r") is False

    closed = await fleet.close()

    assert closed is not None
    assert closed.sentence.startswith("model m, which has no quota left (429); it is tried again")
    answer = await fleet.models.ask("a", "m", "r")
    assert isinstance(answer, ClosedModel)
    assert 3590 < answer.until - time.time() < 3610
    await fleet.due()
    assert await fleet.models.ask("a", "m", "r1") is True
    assert isinstance(await fleet.models.ask("a", "m", "r2"), ClosedModel)
    assert await fleet.models.ask("a", "m", "r1") is True, "its repetition is the same trial"
    assert await fleet.models.ask("b", "m", "r2") is False, "with another key it is another model"


async def test_a_trial_that_fails_waits_twice_as_long_and_late_failures_change_nothing(
    fleet: Fleet,
) -> None:
    first = await fleet.close(wait_seconds=None)
    late = await fleet.close(wait_seconds=None, request="in progress when it was closed")
    await fleet.due()
    assert await fleet.models.ask("a", "m", "trial") is True
    second = await fleet.close(wait_seconds=None, request="trial")

    assert first is not None
    assert late == first
    assert second is not None
    assert 110 < second.until - time.time() < 121


async def test_a_revoked_key_closes_a_model_only_if_it_has_worked(fleet: Fleet) -> None:
    assert await fleet.close(ModelState.REFUSED, worked=True) is None
    await fleet.models.answered("a", "m")
    assert await fleet.close(ModelState.REFUSED, worked=True) is not None


async def test_a_failure_while_others_are_answered_says_nothing_of_the_model(fleet: Fleet) -> None:
    await fleet.models.answered("a", "m")
    assert await fleet.close(ModelState.AWAY, seconds=10) is None
    # Not in the millisecond in which it was answered.
    assert await eventually(lambda: fleet.close(ModelState.AWAY, seconds=0)) is not None


async def test_a_parked_job_holds_no_slot_and_uses_no_attempt_and_no_time(fleet: Fleet) -> None:
    (claim,) = await fleet.running(make_spec(max_attempts=1))
    await fleet.close()

    assert await fleet.park(claim) is JobState.WAITING

    (record,) = await WaitingReasons(fleet.redis, KEYS).explain(
        [await fleet.ledger.get(claim.spec.id)]
    )
    assert (record.state, record.attempt, record.worker) == (JobState.WAITING, 0, None)
    assert str(record.waiting_for).startswith("model m, which has no quota left (429);")
    assert record.waits_until is not None
    assert not await fleet.redis.exists(KEYS.active(claim.spec.root_id))
    journal = await Journal(fleet.redis, KEYS).read(claim.spec.id)
    (told,) = [event.data for event in journal if event.type is EventType.MODEL_STATE]
    assert (told["model"], told["state"]) == ("m", "exhausted")

    await fleet.models.answered("a", "m")

    (again,) = await fleet.running()
    assert (again.attempt, again.spec.id) == (1, claim.spec.id)
    assert again.ran_seconds < 1
    assert await fleet.waiting() == []


async def test_queued_jobs_of_a_closed_model_are_not_dispatched_and_others_are(
    fleet: Fleet,
) -> None:
    first, other = make_spec(), make_spec(model="other")
    (claim,) = await fleet.running(first)
    await fleet.close()
    await fleet.park(claim)

    queued = [make_spec(root_id=first.id), make_spec()]
    went = await fleet.running(*queued, other)

    assert [one.spec.id for one in went] == [other.id]
    (record,) = await WaitingReasons(fleet.redis, KEYS).explain(
        [await fleet.ledger.get(queued[0].id)]
    )
    assert record.state is JobState.QUEUED
    assert str(record.waiting_for).startswith("model m, which has no quota left")
    assert len(await fleet.models.closed()) == 1


async def test_one_job_makes_the_trial_and_then_parked_ones_go_on_before_queued_ones(
    fleet: Fleet,
) -> None:
    one, two = make_spec(), make_spec()
    of_one = [make_spec(root_id=one.id, parent_id=one.id) for _ in range(2)]
    claims = await fleet.running(one, two, *of_one)
    await fleet.close()
    for claim in sorted(claims, key=lambda each: each.spec.id == two.id):  # one's come first
        await fleet.park(claim)
    late = make_spec()
    assert await fleet.running(late) == []
    order = await fleet.waiting()
    assert order[-1] == late.id, "those that had begun come first"
    assert two.id in order[:2], "each tree in its turn"

    await fleet.due()
    await fleet.ledger.reap()
    (trial,) = await fleet.running()
    await fleet.ledger.reap()
    assert await fleet.running() == [], "one at a time"
    assert trial.spec.id == order[0]
    assert await fleet.models.ask("a", "m", "r") is True
    await fleet.models.answered("a", "m")

    went = await fleet.running()
    assert {each.spec.id for each in went} == set(order[1:])


async def test_a_job_that_has_waited_for_as_long_as_it_may_fails_with_the_reason(
    fleet: Fleet,
) -> None:
    begun, queued, patient = (
        make_spec(),
        make_spec(limits=Limits(max_wait_seconds=1e-3)),
        make_spec(),
    )
    (claim, other) = await fleet.running(begun, patient)
    if claim.spec.id != begun.id:
        claim, other = other, claim
    await fleet.close()
    await fleet.park(claim, 1e-3, most_of_agent=DAY)
    await fleet.park(other)
    assert await fleet.running(queued) == []

    deadline = time.monotonic() + 5
    while await fleet.states(begun.id, queued.id) != ["failed", "failed"]:
        assert time.monotonic() < deadline
        await fleet.ledger.reap()

    result = await fleet.ledger.result(begun.id)
    assert result is not None
    assert result.error is not None
    assert result.error.type == "ModelClosed"
    assert "m has no quota left (429)" in result.error.message
    assert await fleet.states(patient.id) == ["waiting"]


async def test_a_job_that_does_not_want_to_wait_is_dispatched_and_told_so(fleet: Fleet) -> None:
    (claim,) = await fleet.running(make_spec())
    await fleet.close()
    await fleet.park(claim)

    (impatient,) = await fleet.running(make_spec(limits=Limits(max_wait_seconds=0)))

    assert await fleet.park(impatient, 0) is JobState.FAILED
    assert await fleet.states(impatient.spec.id) == ["running"], "its worker records its end"


async def test_a_cancelled_job_waits_for_no_model_any_more(fleet: Fleet) -> None:
    claims = await fleet.running(make_spec(), make_spec())
    await fleet.close()
    for claim in claims:
        await fleet.park(claim)
    queued = make_spec()
    assert await fleet.running(queued) == []

    for job_id in (*(claim.spec.id for claim in claims), queued.id):
        await fleet.ledger.cancel(job_id)

    assert await fleet.waiting() == []
    left = await fleet.redis.keys("fanout:dispatch:model_[wtd]*")
    assert left == [], "nothing is left of those that waited"


async def test_a_changed_key_lets_the_jobs_go_on(fleet: Fleet) -> None:
    (claim,) = await fleet.running(make_spec())
    await fleet.close()
    await fleet.park(claim)
    what = f"{claim.spec.agent} "
    assert await fleet.models.waited_for("") == {what: ("a",)}

    assert await fleet.models.reset("", what, ["a"], ["b"])

    (again,) = await fleet.running()
    assert again.spec.id == claim.spec.id
    assert not await fleet.models.reset("", what, ["a"], ["b"]), "another process has done it"
    assert await fleet.models.closed() == []


async def test_the_time_of_a_parent_runs_only_while_that_of_a_child_does(fleet: Fleet) -> None:
    (parent,) = await fleet.running(make_spec())
    children = [
        make_spec(root_id=parent.spec.id, parent_id=parent.spec.id, depth=1) for _ in range(2)
    ]
    await fleet.ledger.park(parent.spec.id, parent.token, [], children, timeout_seconds=60)

    async def clock() -> bool:
        return await fleet.redis.hexists(KEYS.job(parent.spec.id), "clock_from")

    assert not await clock(), "its children are queued"
    claims = await fleet.running()
    assert await clock()
    await fleet.close()
    await fleet.park(claims[0])
    assert await clock(), "one of them runs"
    await fleet.park(claims[1])
    assert not await clock()
    await fleet.models.answered("a", "m")
    assert not await clock(), "they are queued again"
    again = await fleet.running()
    assert await clock()
    for claim in again:
        await fleet.ledger.finish(claim.spec.id, claim.token, make_result(claim.spec.id), {})
    assert await fleet.states(parent.spec.id) == ["queued"]
    assert await fleet.redis.keys("fanout:dispatch:working:*") == []
