"""A job's answer is verified by a command in its sandbox; what fails goes back to the agent."""

from __future__ import annotations

import asyncio
import json

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import Limits
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from tests.builders import make_spec
from tests.fixtures import DOCKER_SLOWLY, place_fixture
from tests.integration.scripts import DONE, call, calls, conversation, says, shell

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

GREEN = "echo checked; grep -q right answer.txt"
EARLY = (shell("echo wrong > answer.txt"), says("Done too early."))
MENDED = (shell("echo right > answer.txt"), DONE)

SCRIPT = (
    conversation("^at once", *MENDED),
    conversation("^mend", *EARLY, *MENDED),
    conversation(
        "^never", *EARLY, says("It is right."), says("It really is."), says("Believe me.")
    ),
    conversation(
        "^delegate",
        calls(
            call("task", description="mend it", verify=GREEN), call("task", description="mend too")
        ),
        DONE,
    ),
    conversation("^ask", calls(call("task", description="mend it", verify=GREEN)), DONE),
)

CHECKER = f"""\
name: checker
description: Checks what it does.
instruction: Check it.
verify: {GREEN}
max_reworks: 0
"""
LEAD = """\
name: lead
description: Delegates.
instruction: Delegate.
subagents: [general-purpose]
"""
CALLER = """\
name: caller
description: Delegates.
instruction: Delegate.
subagents: [general-purpose]
interrupt_on: {execute: [approve]}
"""


place = place_fixture(
    *SCRIPT,
    scope="module",
    providers=DOCKER_SLOWLY,
    agents={"checker": CHECKER, "caller": CALLER, "lead": LEAD},
    workers=1,
    FANOUT_WORKER__LEASE_SECONDS="4",
)


async def events(client: JobClient, job_id: str) -> list[JournalEvent]:
    return [event async for event in client.events(job_id, follow=False)]


async def verifications(client: JobClient, result: JobResult) -> list[int]:
    found = await events(client, result.job_id)
    return [int(str(one.data["exit_code"])) for one in found if one.type is EventType.VERIFY]


async def content(client: JobClient, result: JobResult, path: str) -> bytes:
    async with client.changes(result.job_id) as bundle:
        (file,) = [file for file in bundle.changes.files if file.path == path]
        assert file.after is not None
        return await asyncio.to_thread(bundle.content, file.after)


async def test_an_answer_that_passes_is_the_jobs(client: JobClient) -> None:
    result = await client.run(make_spec("at once", verify=GREEN))

    assert result.state is JobState.SUCCEEDED
    assert result.verified is not None
    assert (result.verified.command, result.verified.exit_code) == (GREEN, 0)
    assert result.verified.output_tail == "checked\n"
    assert await verifications(client, result) == [0]


async def test_an_agent_that_answers_too_early_is_told_the_output_and_mends_it(
    client: JobClient,
) -> None:
    result = await client.run(make_spec("mend", verify=f"{GREEN} || {{ echo not right; exit 7; }}"))

    assert result.state is JobState.SUCCEEDED
    assert result.summary == "Done as asked."
    assert await verifications(client, result) == [7, 0]
    assert result.usage.model_calls == 4
    assert await content(client, result, "answer.txt") == b"right\n"
    told = [
        str(one.data.get("text"))
        for one in await events(client, result.job_id)
        if one.data.get("author") == "user"
    ]
    assert len(told) == 2
    assert "checked\nnot right\n" in told[1]
    assert "exit code 7" in told[1]


async def test_after_the_last_rework_it_fails_with_its_changes(client: JobClient) -> None:
    result = await client.run(make_spec("never", verify=GREEN, max_reworks=2))

    assert result.state is JobState.FAILED
    assert result.error is not None
    assert result.error.type == "VerificationFailed"
    assert not result.error.retryable
    assert result.attempts == 1
    assert result.verified is not None
    assert result.verified.exit_code == 1
    assert await verifications(client, result) == [1, 1, 1]
    assert await content(client, result, "answer.txt") == b"wrong\n"


async def test_a_definition_may_verify_and_the_job_has_the_last_word(client: JobClient) -> None:
    strict = await client.run(make_spec("mend", agent="checker"))
    lenient = await client.run(make_spec("mend", agent="checker", max_reworks=1))
    other = await client.run(make_spec("never", agent="checker", verify="true"))

    assert [one.success for one in (strict, lenient, other)] == [False, True, True]
    assert other.verified is not None
    assert other.verified.command == "true"


async def test_a_task_may_be_verified(client: JobClient) -> None:
    result = await client.run(make_spec("delegate", agent="lead"))

    assert result.success, result.error
    *_, returned = [
        one.data["results"]
        for one in await events(client, result.job_id)
        if one.type is EventType.TOOL_RESULT
    ]
    assert isinstance(returned, list)
    verified, unverified = (json.dumps(one) for one in returned)
    assert '"exit_code": 0' in verified.replace("\\", "")
    assert "verified" not in unverified


async def test_a_task_cannot_run_a_command_that_a_person_would_have_to_approve(
    client: JobClient,
) -> None:
    result = await client.run(make_spec("ask", agent="caller"))

    (returned,) = [
        one for one in await events(client, result.job_id) if one.type is EventType.TOOL_RESULT
    ]
    assert "may not run commands on its own" in json.dumps(returned.data)


@pytest.mark.slow
async def test_a_command_that_does_not_end_is_ended_by_the_jobs_time(client: JobClient) -> None:
    result = await client.run(
        make_spec("at once", verify="sleep 600", limits=Limits(timeout_seconds=10))
    )

    assert result.state is JobState.TIMED_OUT
    assert result.execution_seconds < 100
    assert await content(client, result, "answer.txt") == b"right\n"
