"""Jobs that wait for people, one script at a time, on fakeredis with real Lua."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from fakeredis import FakeAsyncRedis

from fanout.orchestrator.approvals import ApprovalAnswer
from fanout.orchestrator.jobs.approvals import (
    MAX_ANSWER_BYTES,
    MAX_SHOWN_CHARACTERS,
    Approval,
    approval_id,
    shown_arguments,
)
from fanout.orchestrator.jobs.failures import (
    AnsweredAlready,
    DecisionNotAllowed,
    InvalidAnswer,
    UnknownApproval,
)
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType, Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger
from tests.builders import make_result, make_spec, make_worker

WORKER = make_worker(concurrency=1)
YES = ApprovalAnswer(decision="approve", by="ann")


async def running(ledger: Ledger, **fields: Any) -> Claim:
    await ledger.submit([make_spec(**fields)])
    return await claimed(ledger)


async def claimed(ledger: Ledger) -> Claim:
    (job,) = await ledger.dispatch(1)
    claim = await ledger.claim(job.spec.id, WORKER, 10)
    assert isinstance(claim, Claim), claim
    return claim


def asked(job_id: str, number: int = 1, tool: str = "execute", **fields: Any) -> Approval:
    values = {
        "id": approval_id(job_id, f"adk-{number}"),
        "job_id": job_id,
        "agent": "builder",
        "call_id": f"call-{number}",
        "tool": tool,
        "arguments": {"command": "make"},
        "decisions": ("approve", "edit", "reject"),
        "sha256": "0" * 64,
    }
    return Approval.model_validate(values | fields)


async def kinds(journal: Journal, job_id: str) -> list[str]:
    events = await journal.read(job_id)
    return [
        str(event.data["state"]) if event.type is EventType.JOB_STATE else str(event.type)
        for event in events
    ]


async def test_a_parked_job_holds_no_place_and_says_what_it_waits_for(ledger: Ledger) -> None:
    claim = await running(ledger, root_id="tree")
    job_id = claim.spec.id
    approval = asked(job_id)

    assert await ledger.park(job_id, claim.token, [approval]) is JobState.WAITING

    record = await ledger.get(job_id)
    assert (record.state, record.attempt, record.worker) == (JobState.WAITING, 0, None)
    assert (record.waiting_for, record.approvals) == ("approval of execute", (approval.id,))
    other = await running(ledger, root_id="tree")  # one place on the host, one in the tree
    assert other.spec.id != job_id
    assert await ledger.is_live(job_id)


async def test_what_waits_is_listed_with_its_call(ledger: Ledger) -> None:
    claim = await running(ledger)
    approval = asked(claim.spec.id)
    await ledger.park(claim.spec.id, claim.token, [approval])

    (listed,) = await ledger.approvals()

    assert listed.model_copy(update={"requested_at": None}) == approval
    assert listed.requested_at is not None


async def test_the_last_answer_sends_the_job_on_and_no_attempt_is_used_up(
    ledger: Ledger, journal: Journal
) -> None:
    claim = await running(ledger, max_attempts=1)
    job_id = claim.spec.id
    first, second = asked(job_id, 1), asked(job_id, 2, tool="write_file")
    await ledger.park(job_id, claim.token, [first, second])
    assert (await ledger.get(job_id)).waiting_for == "approval of execute, write_file"
    assert [approval.id for approval in await ledger.approvals()] == [first.id, second.id]

    assert await ledger.answer(first.id, YES) == job_id
    assert (await ledger.get(job_id)).state is JobState.WAITING
    await ledger.answer(second.id, ApprovalAnswer(decision="reject", message="no"))

    record = await ledger.get(job_id)
    assert (record.state, record.waiting_for, record.approvals) == (JobState.QUEUED, None, ())
    assert await ledger.approvals() == []
    again = await claimed(ledger)
    assert (again.attempt, again.spec.id) == (1, job_id)
    assert await kinds(journal, job_id) == [
        *("queued", "running", "approval.requested", "approval.requested", "waiting"),
        *("approval.resolved", "approval.resolved", "queued", "running"),
    ]


async def test_the_journal_holds_who_decided_what(ledger: Ledger, journal: Journal) -> None:
    claim = await running(ledger)
    approval = asked(claim.spec.id)
    await ledger.park(claim.spec.id, claim.token, [approval])

    await ledger.answer(
        approval.id,
        ApprovalAnswer(decision="edit", arguments={"command": "ls"}, message="safer", by="ann"),
    )

    (resolved,) = [
        event
        for event in await journal.read(claim.spec.id)
        if event.type is EventType.APPROVAL_RESOLVED
    ]
    assert resolved.data == {
        "id": approval.id,
        "decision": "edit",
        "arguments": {"command": "ls"},
        "message": "safer",
        "by": "default",
    }


async def test_waiting_does_not_count_as_running(ledger: Ledger) -> None:
    began = time.monotonic()
    claim = await running(ledger)
    approval = asked(claim.spec.id)
    await ledger.park(claim.spec.id, claim.token, [approval])
    await asyncio.sleep(0.3)
    await ledger.answer(approval.id, YES)

    ran_seconds = (await claimed(ledger)).ran_seconds
    assert ran_seconds < time.monotonic() - began - 0.25


async def test_an_answer_is_taken_once(ledger: Ledger) -> None:
    claim = await running(ledger)
    approval = asked(claim.spec.id)
    await ledger.park(claim.spec.id, claim.token, [approval])
    await ledger.answer(approval.id, YES)

    with pytest.raises(AnsweredAlready, match="answered already: approve"):
        await ledger.answer(approval.id, ApprovalAnswer(decision="reject"))


async def test_an_answer_whose_reply_got_lost_is_asked_again_and_taken_once(
    ledger: Ledger, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = await running(ledger)
    approval = asked(claim.spec.id)
    await ledger.park(claim.spec.id, claim.token, [approval])
    script = ledger._scripts.registered["answer"]

    async def twice(*, keys: list[str], args: list[Any]) -> Any:
        await script(keys=keys, args=args)
        return await script(keys=keys, args=args)

    monkeypatch.setitem(ledger._scripts.registered, "answer", twice)
    assert await ledger.answer(approval.id, YES) == claim.spec.id
    assert (await kinds(journal, claim.spec.id)).count("approval.resolved") == 1


async def test_what_cannot_be_answered_is_refused_in_words(ledger: Ledger) -> None:
    claim = await running(ledger)
    approval = asked(claim.spec.id)
    await ledger.park(claim.spec.id, claim.token, [approval])

    with pytest.raises(UnknownApproval, match="no approval ap_none"):
        await ledger.answer("ap_none", YES)
    with pytest.raises(DecisionNotAllowed, match="allowed are approve, edit, reject"):
        await ledger.answer(approval.id, ApprovalAnswer(decision="respond", response="x"))
    with pytest.raises(InvalidAnswer, match="bytes"):
        await ledger.answer(
            approval.id, ApprovalAnswer(decision="approve", message="x" * MAX_ANSWER_BYTES)
        )
    assert (await ledger.get(claim.spec.id)).state is JobState.WAITING


async def test_a_job_whose_approvals_were_answered_meanwhile_goes_on_at_once(
    ledger: Ledger,
) -> None:
    claim = await running(ledger)
    job_id = claim.spec.id
    approval = asked(job_id)
    await ledger.park(job_id, claim.token, [approval])
    await ledger.answer(approval.id, YES)
    second = await claimed(ledger)

    assert await ledger.park(job_id, second.token, [approval]) is JobState.QUEUED
    assert await ledger.approvals() == []


async def test_only_the_attempt_that_holds_the_job_can_park_it(ledger: Ledger) -> None:
    claim = await running(ledger)

    assert await ledger.park(claim.spec.id, claim.token + 1, [asked(claim.spec.id)]) is None
    assert await ledger.approvals() == []
    assert (await ledger.get(claim.spec.id)).state is JobState.RUNNING


async def test_cancelling_a_parked_job_ends_it_at_once_and_withdraws_what_it_asked(
    ledger: Ledger,
) -> None:
    claim = await running(ledger)
    approval = asked(claim.spec.id)
    await ledger.park(claim.spec.id, claim.token, [approval])

    assert await ledger.cancel(claim.spec.id) is JobState.WAITING

    record = await ledger.get(claim.spec.id)
    assert (record.state, record.waiting_for, record.approvals) == (JobState.CANCELLED, None, ())
    assert await ledger.approvals() == []
    assert not await ledger.is_live(claim.spec.id)
    with pytest.raises(AnsweredAlready, match="has ended"):
        await ledger.answer(approval.id, YES)


async def test_a_job_that_was_cancelled_while_it_parks_ends_cancelled(ledger: Ledger) -> None:
    claim = await running(ledger)
    await ledger.cancel(claim.spec.id)

    assert (
        await ledger.park(claim.spec.id, claim.token, [asked(claim.spec.id)]) is JobState.CANCELLED
    )
    assert await ledger.approvals() == []


async def test_a_reaper_leaves_parked_jobs_alone(ledger: Ledger) -> None:
    claim = await running(ledger)
    await ledger.park(claim.spec.id, claim.token, [asked(claim.spec.id)])

    assert (await ledger.reap()).states == {}
    assert (await ledger.get(claim.spec.id)).state is JobState.WAITING


async def test_an_answered_approval_is_forgotten_in_time_and_what_was_asked_at_once(
    ledger: Ledger, redis: FakeAsyncRedis
) -> None:
    claim = await running(ledger)
    approval = asked(claim.spec.id)
    await ledger.park(claim.spec.id, claim.token, [approval])
    assert await redis.ttl(Keys().approval(approval.id)) == -1
    await ledger.answer(approval.id, YES)

    assert 0 < await redis.ttl(Keys().approval(approval.id)) <= 30 * 24 * 3600
    assert await redis.hget(Keys().approval(approval.id), "request") is None


async def test_a_job_may_ask_again_and_finishes_as_ever(ledger: Ledger) -> None:
    claim = await running(ledger)
    job_id = claim.spec.id
    for number in (1, 2):
        approval = asked(job_id, number)
        await ledger.park(job_id, claim.token, [approval])
        await ledger.answer(approval.id, YES)
        claim = await claimed(ledger)

    assert await ledger.finish(job_id, claim.token, make_result(job_id), {})
    assert (await ledger.get(job_id)).state is JobState.SUCCEEDED


def test_long_arguments_are_cut_for_the_eye_and_that_is_said() -> None:
    whole, cut = {"a": "x"}, {"a": "x" * MAX_SHOWN_CHARACTERS, "b": 1}

    assert shown_arguments(whole) == (whole, False)
    shown, truncated = shown_arguments(cut)
    assert truncated
    assert "more characters" in str(shown["a"])
    assert shown["b"] == 1


@pytest.mark.parametrize(
    "fields",
    [{"decision": "edit"}, {"decision": "approve", "arguments": {}}, {"decision": "respond"}],
)
def test_an_answer_is_whole(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no other decision allows"):
        ApprovalAnswer.model_validate(fields)
