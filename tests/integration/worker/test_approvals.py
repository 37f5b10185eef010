"""Approvals on a real worker.

A job that waits for a person holds nothing, and goes on as the person says.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from fanout.orchestrator.cli.terminal.session import resolve_approval
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.failures import AnsweredAlready, DecisionNotAllowed, UnknownApproval
from fanout.orchestrator.jobs.spec import JobSpec, Limits
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.fixtures import place_fixture
from tests.integration.scripts import DONE, call, calls, conversation, shell
from tests.integration.worker.approvals import (
    SUPERVISED,
    file_of,
    journal,
    parked,
)
from tests.services import Installation
from tests.waits import eventually

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

CANARY = "canary-4711"

SCRIPT = (
    conversation("one command", shell("echo asked >> out.txt"), DONE),
    conversation(
        "two commands", shell("echo first >> out.txt"), shell("echo second >> out.txt"), DONE
    ),
    conversation(
        "side by side",
        calls(
            call("execute", command="echo a >> out.txt"),
            call("write_todos", todos=[{"content": "x", "status": "in_progress"}]),
            call("write_file", file_path="/workspace/b.txt", content="b"),
        ),
        DONE,
    ),
    conversation("look first", calls(call("ls", path="/workspace")), shell("true"), DONE),
    conversation(CANARY, shell(f"echo {CANARY} >> out.txt"), DONE),
    conversation("quick", calls(call("ls", path="/workspace")), DONE),
)


place = place_fixture(*SCRIPT, scope="module", agents=SUPERVISED, workers=1, concurrency=1)


def guarded(description: str, **fields: object) -> JobSpec:
    return make_spec(description, agent="guarded", **fields)


async def test_a_job_that_waits_holds_no_place_and_goes_on_where_it_was(
    client: JobClient,
) -> None:
    job_id = await client.submit(guarded("one command"))
    (approval,) = await parked(client, job_id)

    assert (approval.tool, approval.agent) == ("execute", "guarded")
    assert approval.arguments["command"] == "echo asked >> out.txt"
    record = await client.get(job_id)
    assert (record.waiting_for, record.approvals) == ("approval of execute", (approval.id,))
    assert (
        await client.wait(await client.submit(make_spec("quick")), 30)
    ).success  # on the only place

    assert await client.answer(approval.id, "approve") == job_id
    result = await client.wait(job_id, 60)

    assert result.success, result.error
    assert await file_of(client, job_id, "out.txt") == "asked\n"
    assert (result.attempts, result.usage.model_calls) == (1, 2)
    assert len(await journal(client, job_id, EventType.MODEL_REQUEST)) == 2
    (requested,) = await journal(client, job_id, EventType.APPROVAL_REQUESTED)
    (resolved,) = await journal(client, job_id, EventType.APPROVAL_RESOLVED)
    assert requested.data["sha256"] == approval.sha256
    assert (resolved.data["id"], resolved.data["by"]) == (approval.id, "default")


async def test_edited_arguments_are_what_runs(client: JobClient) -> None:
    job_id = await client.submit(guarded("one command"))
    (approval,) = await parked(client, job_id)

    await client.answer(approval.id, "edit", arguments={"command": "echo edited >> out.txt"})

    assert (await client.wait(job_id, 60)).success
    assert await file_of(client, job_id, "out.txt") == "edited\n"
    assert "changed the arguments" in str(await journal(client, job_id, EventType.TOOL_RESULT))


async def test_a_rejected_call_does_not_run_and_the_agent_hears_why(client: JobClient) -> None:
    job_id = await client.submit(guarded("one command"))
    (approval,) = await parked(client, job_id)

    await client.answer(approval.id, "reject", message="not on a Sunday")

    result = await client.wait(job_id, 60)
    assert result.success
    assert result.files_modified == ()
    assert "not on a Sunday" in str(await journal(client, job_id, EventType.TOOL_RESULT))


async def test_other_calls_run_at_once_and_the_job_goes_on_with_the_last_answer(
    client: JobClient,
) -> None:
    job_id = await client.submit(guarded("side by side"))
    command, file = await parked(client, job_id)
    assert len(await journal(client, job_id, EventType.TODOS)) == 1
    assert (await client.get(job_id)).waiting_for == "approval of execute, write_file"

    await client.answer(file.id, "respond", response="I wrote it elsewhere")
    assert (await client.get(job_id)).state is JobState.WAITING
    await client.answer(command.id, "approve")

    result = await client.wait(job_id, 60)
    assert [changed.path for changed in result.files_modified] == ["out.txt"]
    assert result.usage.model_calls == 2
    assert "I wrote it elsewhere" in str(await journal(client, job_id, EventType.TOOL_RESULT))


async def test_each_changed_call_needs_an_approval_of_its_own(client: JobClient) -> None:
    job_id = await client.submit(guarded("two commands"))
    (first,) = await parked(client, job_id)
    await client.answer(first.id, "approve")

    (second,) = await parked(client, job_id, times=2)

    assert second.id != first.id
    assert second.arguments["command"] == "echo second >> out.txt"
    with pytest.raises(AnsweredAlready, match="answered already"):
        await client.answer(first.id, "approve")
    await client.answer(second.id, "reject")
    assert (await client.wait(job_id, 60)).success
    assert await file_of(client, job_id, "out.txt") == "first\n"


async def test_a_parents_policy_binds_an_agent_that_has_none(client: JobClient) -> None:
    job_id = await client.submit(make_spec("one command", interrupt_on={"execute": ["reject"]}))
    (approval,) = await parked(client, job_id)

    assert approval.decisions == ("reject",)
    with pytest.raises(DecisionNotAllowed, match="allowed are reject"):
        await client.answer(approval.id, "approve")
    await client.answer(approval.id, "reject")
    assert (await client.wait(job_id, 60)).files_modified == ()


async def test_a_waiting_job_is_cancelled_at_once_and_leaves_nothing(
    place: Installation, client: JobClient
) -> None:
    job_id = await client.submit(guarded("look first"))
    (approval,) = await parked(client, job_id)
    folder = place.folder / "state" / "sandboxes" / "jobs" / job_id
    assert folder.exists()

    assert (await client.cancel(job_id)).state is JobState.WAITING
    result = await client.wait(job_id, 60)

    assert result.state is JobState.CANCELLED
    assert job_id not in [waiting.job_id for waiting in await client.approvals()]
    with pytest.raises(AnsweredAlready, match="has ended"):
        await client.answer(approval.id, "approve")
    await eventually(lambda: not folder.exists())


@pytest.mark.slow
async def test_time_spent_waiting_is_not_the_jobs(client: JobClient) -> None:
    job_id = await client.submit(guarded("one command", limits=Limits(timeout_seconds=8)))
    (approval,) = await parked(client, job_id)
    waited_from = time.monotonic()
    await asyncio.sleep(8.2)  # longer than the job may take: that this does not end it

    await client.answer(approval.id, "approve")
    result = await client.wait(job_id, 60)

    assert result.success, result.error
    assert result.execution_seconds < time.monotonic() - waited_from


async def test_what_is_asked_and_answered_stands_in_the_journal_only(
    place: Installation, client: JobClient
) -> None:
    job_id = await client.submit(guarded(CANARY))
    (approval,) = await parked(client, job_id)
    with pytest.raises(DecisionNotAllowed) as refused:
        await client.answer(approval.id, "respond", response=CANARY)
    await client.answer(
        approval.id, "edit", arguments={"command": f"echo {CANARY}"}, message=CANARY
    )
    assert (await client.wait(job_id, 60)).success

    assert CANARY not in str(refused.value)
    assert CANARY not in place.workers[0].log.read_text(errors="replace")


async def test_an_id_is_resolved_while_it_is_clear(client: JobClient) -> None:
    job_id = await client.submit(guarded("side by side"))
    command, file = await parked(client, job_id)

    assert await resolve_approval(client, command.id[:12]) == command.id
    with pytest.raises(UnknownApproval, match="2 approvals, so name one"):
        await resolve_approval(client, job_id)
    await client.answer(file.id, "approve")
    assert await resolve_approval(client, job_id[:16]) == command.id
    assert await resolve_approval(client, file.id) == file.id
    with pytest.raises(UnknownApproval, match="No approval waits under 'zzz'"):
        await resolve_approval(client, "zzz")
    await client.cancel(job_id)


async def test_a_policy_that_guards_no_tool_fails_the_job_in_words(client: JobClient) -> None:
    result = await client.wait(await client.submit(make_spec("one command", agent="misspelt")), 30)

    assert result.error is not None
    assert (result.error.type, result.attempts) == ("InvalidJob", 1)
    assert "interrupt_on names no tool of this agent: exceute" in result.error.message
    assert result.files_modified == ()
