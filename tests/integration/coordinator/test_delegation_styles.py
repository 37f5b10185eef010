"""Both ways to delegate to jobs: one `task` tool, or one tool for each callable agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fanout.orchestrator.adk.task_toolset import TaskToolset
from fanout.orchestrator.deep_agent.delegation.roster import tool_name
from tests.integration.coordinator.driving import Coordination
from tests.integration.scripts import call, calls
from tests.services import Installation

pytestmark = pytest.mark.redis


@pytest.fixture
async def by_agent(
    shared_place: Installation, tmp_path: Path, workspace: Path
) -> AsyncIterator[Coordination]:
    """A coordination with one tool for each agent."""
    async with shared_place.client() as client:
        await shared_place.ready(client)
        made = Coordination(client, tmp_path, workspace)
        made.delegation = "agent_tools"
        yield made


async def test_one_tool_for_each_agent_starts_jobs_at_the_same_time(by_agent: Coordination) -> None:
    run = await by_agent.run(
        calls(
            call("researcher", description="run: echo a > a.txt", context="here"),
            call("general_purpose", description="run: echo b > b.txt"),
        )
    )

    assert [result["status"] for result in run.results] == ["success", "success"]
    assert sorted(path.name for path in by_agent.workspace.iterdir()) == [
        "a.txt",
        "b.txt",
        "kept.txt",
    ]
    records = [await by_agent.client.get(result["task_id"]) for result in run.results]
    assert [record.agent for record in records] == ["researcher", "general-purpose"]
    assert records[0].context == "here"


async def test_starting_without_waiting_is_there_in_both_styles(
    by_agent: Coordination, coordination: Coordination
) -> None:
    names = {
        made.delegation: {
            tool_name(tool)
            for tool in await TaskToolset(
                made.client, made.workspace, delegation=made.delegation
            ).get_tools()
        }
        for made in (by_agent, coordination)
    }
    rest = {
        "tasks",
        "start_task",
        "check_task",
        "wait_tasks",
        "update_task",
        "cancel_task",
        "list_tasks",
    }
    assert rest <= names["task"] & names["agent_tools"]
    assert names["task"] - names["agent_tools"] == {"task"}
    assert {"researcher", "general_purpose"} <= names["agent_tools"] - names["task"]


async def test_a_mistake_in_a_call_is_answered_in_words(by_agent: Coordination) -> None:
    run = await by_agent.run(calls(call("tester", description=" "), call("tester", wrong="x")))
    assert "description is empty" in run.results[0]["error"]
    assert "called with wrong arguments" in run.results[1]["error"]
