"""Tasks that nobody waits for at once.

Tasks, start_task, check_task, wait_tasks, cancel_task, list_tasks.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from fanout.orchestrator.jobs.state import JobState
from tests.integration.coordinator.driving import Coordination
from tests.integration.scripts import call, calls
from tests.services import WAITS, Installation

pytestmark = pytest.mark.redis


async def start(coordination: Coordination, *descriptions: str, session_id: str) -> list[str]:
    made = [call("start_task", description=description) for description in descriptions]
    run = await coordination.run(calls(*made), session_id=session_id)
    assert [result["status"] for result in run.results] == ["success"] * len(made)
    return [result["task_id"] for result in run.results]


async def ask(
    coordination: Coordination, tool: str, *, session_id: str, **args: Any
) -> dict[str, Any]:
    """What one call of a tool answers, later in the same conversation."""
    run = await coordination.run(calls(call(tool, **args)), session_id=session_id)
    (result,) = run.results
    return result


async def test_of_many_tasks_one_fails_and_the_others_arrive(
    coordination: Coordination, shared_place: Installation
) -> None:
    tasks = [
        {"description": f"run: {WAITS}; echo a > a.txt"},
        {"description": "fail after: echo b > b.txt"},
        {"description": "run: true", "subagent_type": "nobody"},
        {"description": f"run: {WAITS}; echo d > d.txt", "context": "more"},
        {"descriptoin": "run: true"},
        {"description": "run: true", "timeout_seconds": "soon"},
    ]
    run, _ = await asyncio.gather(
        coordination.run(calls(call("tasks", tasks=tasks))), shared_place.let_end(2)
    )

    (answer,) = run.results
    assert (answer["status"], answer["success"]) == ("partial", False)
    results = answer["results"]
    assert [result["status"] for result in results] == [
        "success", "error", "error", "success", "error", "error"
    ]  # fmt: skip
    assert "there are: general-purpose" in results[2]["error"]
    assert "tasks[4] takes description" in results[4]["error"]
    assert "timeout_seconds" in results[5]["error"]
    assert sorted(path.name for path in coordination.workspace.iterdir()) == [
        "a.txt",
        "d.txt",
        "kept.txt",
    ]
    told = {(event.custom_metadata or {})["job_id"] for event in run.progress}
    assert told == {results[number]["task_id"] for number in (0, 1, 3)}


@pytest.mark.parametrize(
    "wrong", [{}, {"tasks": "run: true"}, {"tasks": ["run: true"]}, {"tasks": None}]
)
async def test_a_list_of_tasks_that_is_none_is_answered_in_words(
    coordination: Coordination, wrong: dict[str, Any]
) -> None:
    run = await coordination.run(calls(call("tasks", **wrong)))

    (answer,) = run.results
    assert answer["status"] == "error"
    assert "tasks" in answer["error"]


async def test_no_tasks_at_all_have_no_results(coordination: Coordination) -> None:
    run = await coordination.run(
        calls(call("tasks", tasks=[])), calls(call("wait_tasks", task_ids=[]))
    )

    assert run.results[0] == {
        "status": "success",
        "success": True,
        "summary": "Completed 0 of 0 tasks.",
        "results": [],
    }
    assert run.results[1] == {"status": "success", "results": [], "unfinished": []}


async def test_a_started_task_is_checked_waited_for_and_merged(
    coordination: Coordination, shared_place: Installation
) -> None:
    session_id = await coordination.new_session()
    (job_id,) = await start(
        coordination, f"run: {WAITS}; echo new > new.txt", session_id=session_id
    )
    checked = await ask(coordination, "check_task", task_id=job_id, session_id=session_id)
    assert (checked["status"], checked["task_id"]) == ("success", job_id)
    assert checked["state"] in ("queued", "running"), "nothing waited for its end"
    assert not (coordination.workspace / "new.txt").exists()

    await shared_place.let_end()
    waited = await ask(coordination, "wait_tasks", task_ids=[job_id, job_id], session_id=session_id)

    (result,) = waited["results"]
    assert (waited["status"], waited["unfinished"]) == ("success", [])
    assert result["merge"] == {"applied": 1, "conflicts": []}
    assert (coordination.workspace / "new.txt").read_text() == "new\n"
    again = await ask(coordination, "check_task", task_id=job_id, session_id=session_id)
    assert again["summary"] == result["summary"]
    assert (coordination.workspace / "new.txt").read_text() == "new\n"


@pytest.mark.slow
async def test_waiting_ends_with_its_time_and_the_tasks_go_on(coordination: Coordination) -> None:
    session_id = await coordination.new_session()
    quick, slow = await start(coordination, "run: true", "run: sleep 600", session_id=session_id)
    await coordination.client.wait(quick, 60)
    before = time.monotonic()
    waited = await ask(
        coordination,
        "wait_tasks",
        task_ids=[quick, slow, "no-such-job"],
        timeout_seconds=3,
        session_id=session_id,
    )

    assert 3 <= time.monotonic() - before < 100
    assert waited["unfinished"] == [slow]
    assert [result["status"] for result in waited["results"]] == ["success", "error"]
    assert waited["results"][1]["task_id"] == "no-such-job"
    assert (await coordination.client.get(slow)).state is JobState.RUNNING

    cancelled = await ask(coordination, "cancel_task", task_id=slow, session_id=session_id)
    assert cancelled == {"status": "success", "task_id": slow}
    assert (await coordination.client.wait(slow, 60)).state is JobState.CANCELLED
    twice = await ask(coordination, "cancel_task", task_id=slow, session_id=session_id)
    assert twice["status"] == "error"
    assert "ended before: cancelled" in twice["error"]


async def test_all_tasks_of_the_conversation_are_listed(coordination: Coordination) -> None:
    session_id = await coordination.new_session()
    assert await ask(coordination, "list_tasks", session_id=session_id) == {
        "status": "success",
        "tasks": [],
    }
    ids = await start(coordination, "run: true", "run: false", session_id=session_id)
    await ask(coordination, "wait_tasks", task_ids=ids, session_id=session_id)

    listed = await ask(coordination, "list_tasks", session_id=session_id)

    # The calls of one reply run at once, so that either may be submitted first.
    assert {(item["task_id"], item["agent"], item["state"]) for item in listed["tasks"]} == {
        (job_id, "general-purpose", "succeeded") for job_id in ids
    }

    (later,) = await start(coordination, "run: true", session_id=session_id)
    listed = await ask(coordination, "list_tasks", session_id=session_id)
    assert listed["tasks"][-1]["task_id"] == later


async def test_another_conversations_tasks_do_not_exist(coordination: Coordination) -> None:
    mine, other = await coordination.new_session(), await coordination.new_session()
    (job_id,) = await start(coordination, "run: sleep 30", session_id=other)

    for tool in ("check_task", "cancel_task"):
        refused = await ask(coordination, tool, task_id=job_id, session_id=mine)
        unknown = await ask(coordination, tool, task_id="no-such-job", session_id=mine)
        assert refused["status"] == "error"
        assert refused["error"] == unknown["error"].replace("no-such-job", job_id)
    waited = await ask(coordination, "wait_tasks", task_ids=[job_id], session_id=mine)
    assert waited["results"][0]["status"] == "error"
    assert (await ask(coordination, "list_tasks", session_id=mine))["tasks"] == []
    assert not (await coordination.client.get(job_id)).state.is_terminal
