"""The harness's guards on a real worker.

Loops, calls that were cut off, budgets, and what is shown live.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.deep_agent.loop_guard import (
    MAX_REPEATED_COMMANDS,
    MAX_SAME_COMMANDS,
)
from fanout.orchestrator.deep_agent.prompts import CALL_INTERRUPTED
from fanout.orchestrator.jobs.spec import Limits
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from tests.builders import make_spec
from tests.fixtures import place_fixture
from tests.forked import run_module
from tests.integration.scripts import DONE, call, calls, conversation, says, shell
from tests.services import Installation
from tests.waits import until_event

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

COUNTING = "for n in 1 2 3 4 5 6; do echo line $n; sleep 0.5; done"
LONG_TEXT = "I shall now count from one to six. " * 20
TIMEOUT_SECONDS = 6

SCRIPT = (
    conversation("^loop", *(shell("echo again >> looks") for _ in range(20))),
    conversation("^spend", *(calls(*[call("ls", path=f"/workspace/{n}")] * 2) for n in range(9))),
    conversation("^hang", shell("echo x >> begun; sleep 600"), says("## Summary\n{{last_result}}")),
    conversation("^count", {**shell(COUNTING), "text": LONG_TEXT}, DONE),
    conversation("^delegate (.*)$", calls(call("task", description="{{1}}")), DONE),
)

SLOW_COORDINATOR = f"""\
name: slow
description: Has little time.
instruction: Delegate.
subagents: [general-purpose]
limits: {{timeout_seconds: {TIMEOUT_SECONDS}}}
"""


place = place_fixture(
    *SCRIPT,
    scope="module",
    agents={"slow": SLOW_COORDINATOR},
    workers=1,
    FANOUT_WORKER__STREAM_TEXT="true",
    FANOUT_WORKER__LEASE_SECONDS="4",
)


async def journal(client: JobClient, job_id: str, kind: EventType) -> list[JournalEvent]:
    return [event async for event in client.events(job_id, follow=False) if event.type is kind]


async def test_a_job_that_repeats_itself_is_stopped_and_says_why(client: JobClient) -> None:
    result = await client.run(make_spec("loop"))

    assert result.state is JobState.FAILED
    assert result.error is not None
    assert result.error.type == "AgentFailed"
    repeated = f"called execute with the same arguments {MAX_REPEATED_COMMANDS} times in a row"
    assert repeated in result.error.message
    assert result.usage.tool_calls == MAX_REPEATED_COMMANDS
    results = await journal(client, result.job_id, EventType.TOOL_RESULT)
    refused = ["in a row of execute" in str(event.data) for event in results]
    assert refused == [False] * MAX_SAME_COMMANDS + [True] * (
        MAX_REPEATED_COMMANDS - MAX_SAME_COMMANDS
    )


async def test_tool_calls_are_limited_by_the_job(client: JobClient) -> None:
    result = await client.run(make_spec("spend", limits=Limits(max_tool_calls=3)))

    assert result.error is not None
    assert (result.error.type, result.error.message) == (
        "LimitReached",
        "The limit max_tool_calls=3 is reached (3 used).",
    )
    assert result.usage.tool_calls == 3


@pytest.mark.slow
async def test_a_call_whose_worker_was_killed_is_answered_and_the_model_is_told(
    place: Installation,
    client: JobClient,
) -> None:
    job_id = await client.submit(make_spec("hang"))
    await until_event(client, job_id, EventType.TOOL_CALL)
    place.workers[-1].kill()
    place.start_worker()
    result = await client.wait(job_id)

    assert result.success
    assert result.attempts == 2
    assert CALL_INTERRUPTED in result.summary
    assert result.usage.tool_calls == 1


async def test_what_a_job_prints_and_says_is_in_its_journal_while_it_runs(
    client: JobClient,
) -> None:
    job_id = await client.submit(make_spec("count"))
    seen = [
        (event.data["stream"], (await client.get(job_id)).state)
        async for event in client.events(job_id)
        if event.type is EventType.LOG
    ]
    logs = await journal(client, job_id, EventType.LOG)
    (answer,) = await journal(client, job_id, EventType.TOOL_RESULT)

    assert {state for _, state in seen} == {JobState.RUNNING}
    assert {stream for stream, _ in seen} == {"text", "output"}
    assert all(
        ("line" if event.data["stream"] == "output" else "count") in str(event.data["text"])
        for event in logs
    )
    assert len(logs) <= 6
    assert "line 1\\nline 2" in answer.model_dump_json()


@pytest.mark.slow
async def test_a_coordinator_whose_time_is_over_ends_its_jobs_and_exits_with_5(
    place: Installation, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    command = [
        "run",
        "delegate hang",
        "--agent",
        "slow",
        "--workspace",
        str(tmp_path / "work"),
        "--yes",
    ]
    ended = await asyncio.to_thread(
        run_module,
        "orchestrator",
        *command,
        environment=place.environment,
    )

    assert ended.returncode == 5, ended.stderr
    assert f"The job's time limit of {TIMEOUT_SECONDS} s is used up" in ended.stderr
    async with place.client() as client:
        jobs = [
            job
            for job in await client.list()
            if job.root_id != job.id and job.description == "hang"
        ]
        (state,) = [(await client.wait(job.id)).state for job in jobs]
        assert state in {JobState.CANCELLED, JobState.TIMED_OUT}  # its time is its parent's
