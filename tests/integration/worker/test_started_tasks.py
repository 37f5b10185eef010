"""Agents on real workers whose tasks go on while they work: started, checked, waited for, told.

A wait holds no slot of a worker.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.fixtures import place_fixture
from tests.integration.scripts import DONE, call, calls, conversation, shell
from tests.integration.worker.approvals import file_of, journal
from tests.integration.worker.children import (
    DELEGATING,
    answers,
    children_of,
    until,
)
from tests.services import Installation

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

MANY = 60
PAGED, PAGE, SLOTS = 200, 50, 4
ALL = ["{{started}}"]


def starts(*descriptions: str, **more: Any) -> dict[str, Any]:
    made = (call("start_task", description=text, **more) for text in descriptions)
    return calls(*made)


def waits(*job_ids: str, **more: Any) -> dict[str, Any]:
    return calls(call("wait_tasks", task_ids=list(job_ids or ALL), **more))


SCRIPT = (
    conversation(
        "works meanwhile",
        shell("echo base > base.txt"),
        starts("writes a", "writes b"),
        shell("echo own > own.txt"),
        waits(),
        shell("cat base.txt a.txt b.txt own.txt > seen.txt"),
        calls(call("check_task", task_id="{{started_1}}"), call("list_tasks")),
        DONE,
    ),
    conversation("writes (.)", shell("sleep 1; cat base.txt > {{1}}.txt"), DONE),
    conversation(
        "waits too short",
        starts("sleeps 600", "writes nothing"),
        waits(timeout_seconds=8),
        calls(call("cancel_task", task_id="{{started_1}}")),
        calls(call("check_task", task_id="nobody")),
        waits(timeout_seconds=600),
        calls(call("cancel_task", task_id="{{started_1}}")),
        DONE,
    ),
    conversation(r"sleeps (\d+)", shell("sleep {{1}}"), DONE),
    conversation("writes nothing", shell("true"), DONE),
    conversation("tells", starts("is told"), calls(
        call("update_task", task_id="{{started_1}}", message="the word is plum")
    ), waits(), DONE),
    conversation("is told", shell("sleep 1"), shell("true"), DONE),
    conversation("many", starts(*(f"quick {number}" for number in range(MANY))), waits(), DONE),
    conversation("quick", DONE),
    conversation(
        "pages",
        *(
            starts(*(f"paged {number}" for number in range(first, first + 100)))
            for first in range(0, PAGED, 100)
        ),
        *(
            waits(*(f"{{{{started_{number}}}}}" for number in range(first + 1, first + 1 + PAGE)))
            for first in range(0, PAGED, PAGE)
        ),
        DONE,
    ),
    conversation("paged", shell("sleep 0.1"), DONE),
    conversation("forgets", starts("sleeps 60"), DONE),
    conversation("merges once", starts("writes x"), waits(), shell("rm x.txt"), waits(), DONE),
    conversation("tools by name", calls(
        call("general_purpose", description="writes nothing"),
        call("general_purpose", description="quick"),
    ), DONE),
    conversation("both", calls(
        call("start_task", description="sleeps 1"),
    ), calls(
        call("task", description="sleeps 2"),
        call("wait_tasks", task_ids=["{{started_1}}"], timeout_seconds=1),
    ), DONE),
)  # fmt: skip

NAMED = """
name: named
description: Has a tool for each agent.
instruction: Do it.
subagents: [general-purpose]
delegation: agent_tools
"""


place = place_fixture(
    *SCRIPT, scope="module", agents={**DELEGATING, "named": NAMED}, workers=1, concurrency=SLOTS
)


def lead(description: str, **fields: object) -> JobSpec:
    return make_spec(description, agent="lead", **fields)


async def make_result(client: JobClient, job_id: str, tool: str) -> dict[str, Any]:
    return (await answers(client, job_id, tool))[-1]


@pytest.mark.slow
async def test_an_agent_works_on_beside_its_tasks_and_merges_them_when_it_waits(
    client: JobClient, tmp_path: Path
) -> None:
    job_id = await client.submit(lead("works meanwhile"), workspace=tmp_path)
    parked = await until(client, job_id, JobState.WAITING)
    assert parked.waiting_for is not None
    assert parked.waiting_for.endswith("of 2")
    result = await client.wait(job_id, 60)

    assert result.success, result.error
    # They began from the files as they were when they were started.
    assert await file_of(client, job_id, "seen.txt") == "base\n" * 3 + "own\n"
    waited = await make_result(client, job_id, "wait_tasks")
    assert waited["unfinished"] == []
    assert [one["merge"]["applied"] for one in waited["results"]] == [1, 1]
    checked = await make_result(client, job_id, "check_task")
    assert (checked["status"], checked["merge"]["applied"]) == ("success", 1)
    listed = await make_result(client, job_id, "list_tasks")
    assert [task["state"] for task in listed["tasks"]] == ["succeeded"] * 2
    assert len(await journal(client, job_id, EventType.CHILD_LANDED)) == 2
    assert (result.attempts, result.usage.model_calls) == (1, 7)


@pytest.mark.slow
async def test_a_wait_ends_with_its_time_and_the_task_goes_on(client: JobClient) -> None:
    job_id = await client.submit(lead("waits too short"))
    assert (await client.wait(job_id, 60)).success

    waited = await answers(client, job_id, "wait_tasks")
    children = await children_of(client, job_id)
    slow, quick = sorted(children, key=lambda child: child.description)
    assert waited[0]["unfinished"] == [slow.id]
    assert [one["task_id"] for one in waited[0]["results"]] == [quick.id]
    assert slow.state is JobState.CANCELLED
    assert [one["status"] for one in await answers(client, job_id, "cancel_task")] == [
        "success",
        "error",
    ]
    nobody = await make_result(client, job_id, "check_task")
    assert "You have no task nobody" in nobody["error"]
    assert [one["status"] for one in waited[1]["results"]] == ["error", "success"]


@pytest.mark.slow
async def test_a_task_is_told_something_while_it_works(client: JobClient) -> None:
    job_id = await client.submit(lead("tells"))
    assert (await client.wait(job_id, 60)).success

    (child,) = await children_of(client, job_id)
    (message,) = await journal(client, child.id, EventType.MESSAGE)
    assert message.data["text"] == "the word is plum"
    assert (await client.result(child.id)).unread_messages == ()


@pytest.mark.slow
async def test_many_tasks_are_waited_for_without_a_slot(client: JobClient) -> None:
    job_id = await client.submit(lead("many"))
    result = await client.wait(job_id, 80)

    assert result.success, result.error
    waited = await make_result(client, job_id, "wait_tasks")
    assert waited["unfinished"] == []
    assert len(await children_of(client, job_id)) == MANY
    states = [
        str(event.data["state"]) for event in await journal(client, job_id, EventType.JOB_STATE)
    ]
    assert states == [
        *("queued", "running", "waiting", "queued", "running", "succeeded"),
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_two_hundred_tasks_are_waited_for_in_pages_without_a_slot(
    client: JobClient,
) -> None:
    job_id = await client.submit(lead("pages"))
    most_children = 0
    while not (parent := await client.get(job_id)).state.is_terminal:
        if parent.state is JobState.WAITING:
            tree = await client.list(states={JobState.RUNNING})
            most_children = max(most_children, sum(one.parent_id == job_id for one in tree))
        await asyncio.sleep(0.2)

    result = await client.wait(job_id, 60)
    assert result.success, result.error
    waited = await answers(client, job_id, "wait_tasks")
    assert [page["unfinished"] for page in waited] == [[]] * (PAGED // PAGE)
    assert len(await children_of(client, job_id)) == PAGED
    assert most_children == SLOTS, "the parent held one"


async def test_tasks_that_nobody_waits_for_end_with_their_parent(client: JobClient) -> None:
    job_id = await client.submit(lead("forgets"))
    assert (await client.wait(job_id, 60)).success

    (child,) = await children_of(client, job_id)
    assert (await client.wait(child.id, 60)).state is JobState.CANCELLED


async def test_what_a_task_changed_is_merged_once(place: Installation, tmp_path: Path) -> None:
    (tmp_path / "base.txt").write_text("base\n")
    async with place.client() as client:
        await place.ready(client)
        job_id = await client.submit(lead("merges once"), workspace=tmp_path)
        result = await client.wait(job_id, 60)

        assert (result.success, result.files_modified) == (True, ())


async def test_an_agent_may_have_a_tool_for_each_sub_agent(client: JobClient) -> None:
    job_id = await client.submit(make_spec("tools by name", agent="named"))
    assert (await client.wait(job_id, 60)).success

    told = await answers(client, job_id, "general_purpose")
    assert [one["summary"] for one in told] == ["Done as asked."] * 2


async def test_a_wait_beside_a_task_lasts_as_long_as_the_task(client: JobClient) -> None:
    job_id = await client.submit(lead("both"))
    result = await client.wait(job_id, 60)

    assert result.success, result.error
    waited = await make_result(client, job_id, "wait_tasks")
    assert (len(waited["results"]), waited["unfinished"]) == (1, [])
    states = await journal(client, job_id, EventType.JOB_STATE)
    assert [event.data["state"] for event in states].count("running") == 2
