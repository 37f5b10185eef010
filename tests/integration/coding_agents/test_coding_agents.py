"""Jobs of coding agents: a real worker, a real Redis, and a program that speaks ACP."""

from __future__ import annotations

import pytest

from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.fixtures import place_fixture
from tests.integration.coding_agents.program import coding_agent, task
from tests.integration.worker.approvals import file_of, journal
from tests.services import Installation

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

AGENTS = {"coder": coding_agent("coder", instruction="You are careful.")}

place = place_fixture(
    scope="module",
    providers=("local", pytest.param("docker", marks=pytest.mark.docker)),
    agents=AGENTS,
    workers=1,
)


async def test_a_coding_agent_changes_files_and_its_steps_are_in_the_journal(
    place: Installation,
) -> None:
    steps = [
        {"plan": [["write it", "in_progress"], ["check it", "pending"]]},
        {"think": "I write."},
        {"say": "I will write a file."},
        {"write": {"notes.txt": "one\n"}},
        {"run": "cat notes.txt"},
        {"unknown": None},
        {"cost": 0.25},
        {"say": "All is written."},
        {"tokens": [100, 20]},
    ]
    async with place.client() as client:
        result = await client.run(make_spec(task(steps), agent="coder"))
        assert result.success, result
        assert [(file.path, file.change) for file in result.files_modified] == [
            ("notes.txt", "added")
        ]
        assert await file_of(client, result.job_id, "notes.txt") == "one\n"
        assert result.summary == "refused: -32601 All is written."
        assert (result.usage.tool_calls, result.usage.input_tokens) == (2, 100)
        assert result.usage.cost_usd == 0.25
        calls = await journal(client, result.job_id, EventType.TOOL_CALL)
        assert [(call.data["tool"], call.data["arguments"]) for call in calls] == [
            ("edit", {"title": "Write notes.txt", "path": "notes.txt"}),
            ("execute", {"title": "cat notes.txt", "command": "cat notes.txt"}),
        ]
        results = await journal(client, result.job_id, EventType.TOOL_RESULT)
        outputs = [event.data["results"][0]["result"]["output"] for event in results]  # type: ignore[index,call-overload]
        assert outputs == ["4", "one\n"]
        (todos,) = await journal(client, result.job_id, EventType.TODOS)
        assert todos.data["todos"][0] == {"content": "write it", "status": "in_progress"}  # type: ignore[index,call-overload]
