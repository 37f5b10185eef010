"""What a parent reads of many tasks that are jobs, by the tokens that its model counts.

Each task says 4,000 characters, of which 100 are more than the window of most models.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.events import Event
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService

from fanout.orchestrator.adk.task_toolset import TaskToolset
from fanout.orchestrator.deep_agent.models.resolve import resolve_model
from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.fixtures import place_fixture
from tests.integration.coordinator.driving import APP_NAME, Coordination, Run
from tests.integration.scripts import (
    DONE,
    call,
    calls,
    conversation,
    says,
    shell,
    write_script,
)
from tests.integration.worker.approvals import journal
from tests.integration.worker.children import DELEGATING, answers, children_of
from tests.services import Installation, Installer

pytestmark = [pytest.mark.redis, pytest.mark.timeout(600)]

LIMIT = 8_000
SUMMARY = f"The first line.\n{'word ' * 795}the end"
assert len(SUMMARY) >= 3_998


def items(count: int) -> list[dict[str, Any]]:
    return [{"description": f"talks {number}"} for number in range(count)]


def at_once(count: int, tool: str = "task") -> dict[str, Any]:
    return calls(*(call(tool, **item) for item in items(count)))


def in_tasks(count: int) -> dict[str, Any]:
    return calls(call("tasks", tasks=items(count)))


def started(count: int) -> list[dict[str, Any]]:
    """Replies that start so many tasks, wait for them, and list them."""
    made = items(count)
    return [
        *(
            calls(*(call("start_task", **item) for item in made[first : first + 100]))
            for first in range(0, count, 100)
        ),
        calls(call("wait_tasks", task_ids=["{{started}}"])),
        calls(call("list_tasks")),
    ]


def look(pattern: str) -> dict[str, Any]:
    return calls(call("grep", pattern=pattern, path="/task_results", output_mode="count"))


LOOK = look("the end")
LOOK_AT_SOME = look("# Task 0")
"""Of a thousand results, the sixteenth part whose id begins with that digit: grep is not bounded as
results of tasks are."""

place = place_fixture(
    conversation("100 at once", at_once(100), LOOK, DONE),
    conversation("100 in tasks", in_tasks(100), LOOK, DONE),
    conversation(
        "100 started",
        *started(100),
        LOOK,
        calls(call("read_file", file_path="/task_results/{{started_7}}.md")),
        DONE,
    ),
    conversation("1000 in tasks", in_tasks(1_000), LOOK_AT_SOME, DONE),
    conversation("1000 started", *started(1_000), LOOK_AT_SOME, DONE),
    conversation("fails 3 of 40", calls(
        call("tasks", tasks=[{"description": f"breaks {number}"} for number in range(3)] + items(37))
    ), DONE),
    conversation("breaks", {"raise": "broken"}),
    conversation("talks", says(SUMMARY)),
    scope="module",
    agents=DELEGATING,
    workers=1,
    concurrency=16,
    FANOUT_LIMITS__MAX_CHILDREN="1000",
)  # fmt: skip


def rises(events: Iterable[Event]) -> list[int]:
    """By how many tokens results raised each request, beside the model's own replies."""
    counted = [
        (usage.prompt_token_count or 0, usage.candidates_token_count or 0)
        for event in events
        if not event.partial and (usage := event.usage_metadata)
    ]
    return [later - earlier - said for (earlier, said), (later, _) in pairwise(counted)]


async def of_job(place: Installation, description: str, seconds: float = 120) -> tuple[Any, str]:
    """The rises of a job on a worker, and its id."""
    async with place.client() as client:
        await place.ready(client)
        job_id = await client.submit(make_spec(description, agent="lead"))
        result = await client.wait(job_id, seconds)
        assert result.success, result.error
        replies = await journal(client, job_id, EventType.MODEL_REPLY)
    return rises(Event.model_validate(reply.data["event"]) for reply in replies), job_id


async def told(place: Installation, job_id: str, tool: str) -> dict[str, Any]:
    """The last answer of a tool, as the journal shows it to people."""
    async with place.client() as client:
        shown = [
            dict(answer["result"])
            for event in await journal(client, job_id, EventType.TOOL_RESULT)
            for answer in event.data.get("results") or []
            if answer["tool"] == tool
        ]
    return shown[-1]


WAYS = [
    *("100 at once", "100 in tasks", "100 started"),
    *(pytest.param(way, marks=pytest.mark.slow) for way in ("1000 in tasks", "1000 started")),
]


@pytest.mark.parametrize("way", WAYS)
async def test_tasks_on_workers_raise_their_parents_next_request_by_no_more_than_the_limit(
    place: Installation, way: str
) -> None:
    found, job_id = await of_job(place, way, 500)

    print(way, found)
    assert max(found) <= LIMIT
    async with place.client() as client:
        assert len(await children_of(client, job_id)) == int(way.split(maxsplit=1)[0])
        (looked,) = await answers(client, job_id, "grep")
    assert str(looked).count("/task_results/") >= 25


async def test_a_whole_result_is_read_from_its_file(place: Installation) -> None:
    _, job_id = await of_job(place, "100 started")
    waited = await told(place, job_id, "wait_tasks")
    async with place.client() as client:
        (read,) = await answers(client, job_id, "read_file")
        result = await client.wait(job_id, 1)

    assert "The first line." in str(read)
    assert "the end" in str(read)
    assert waited["results"].startswith("[100]{task,agent,status,line,files,merge,cost_usd}:")
    assert result.files_modified == ()


async def test_failures_come_first_in_the_table(place: Installation) -> None:
    _, job_id = await of_job(place, "fails 3 of 40")
    answer = await told(place, job_id, "tasks")

    rows = answer["results"].splitlines()[1:9]
    assert [",error," in row for row in rows] == [True] * 3 + [False] * 5
    assert answer["summary"] == "Completed 37 of 40 tasks."


@pytest.fixture
def contained(install: Installer) -> Installation:
    return install(
        conversation(
            "of docker",
            shell("echo own > own.txt"),
            calls(call("tasks", tasks=items(3)), *[call("task", **item) for item in items(9)]),
            calls(
                call("grep", pattern="the end", path="/task_results", output_mode="count"),
                call("execute", command="ls /task_results; find / -name '*.md' -path '*task_res*'"),
            ),
            DONE,
        ),
        conversation("talks", says(SUMMARY)),
        agents=DELEGATING,
        workers=1,
        FANOUT_SANDBOX__PROVIDER="docker",
        FANOUT_MAX_RESULT_TOKENS="3000",
    )


@pytest.mark.slow
@pytest.mark.docker
async def test_a_job_in_a_container_reads_whole_results_which_are_none_of_its_files(
    contained: Installation,
) -> None:
    found, job_id = await of_job(contained, "of docker", 240)
    async with contained.client() as client:
        (read,) = await answers(client, job_id, "grep")
        listed = await answers(client, job_id, "execute")
        result = await client.wait(job_id, 1)

    assert max(found) <= 3_000
    assert str(read).count("/task_results/") == 12
    assert "/task_results/" not in str(listed[-1].get("output"))
    assert [file.path for file in result.files_modified] == ["own.txt"]


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(at_once(100), id="100 at once"),
        pytest.param(in_tasks(1_000), id="1000 in tasks", marks=pytest.mark.slow),
    ],
)
async def test_tasks_of_a_programs_agent_raise_its_next_request_by_no_more_than_the_limit(
    place: Installation, tmp_path: Path, reply: dict[str, Any]
) -> None:
    async with place.client() as client:
        await place.ready(client)
        run = await Coordination(client, tmp_path, tmp_path).run(
            reply, LOOK_AT_SOME if len(reply["calls"]) == 1 else LOOK
        )

    print(rises(run.events))
    assert max(rises(run.events)) <= LIMIT
    assert "/task_results/" in str(run.results[-1])


async def test_so_does_the_toolset_in_an_agent_of_adk(place: Installation, tmp_path: Path) -> None:
    script = write_script(tmp_path, {"agent": "plain", **conversation("", at_once(100), DONE)})
    async with place.client() as client:
        await place.ready(client)
        agent = LlmAgent(
            name="plain",
            model=resolve_model(f"scripted:{script}", agent_name="plain"),
            tools=[TaskToolset(client, tmp_path)],
        )
        coordination = Coordination(client, tmp_path, tmp_path)
        coordination.sessions = InMemorySessionService()
        run = Run(await coordination.new_session())
        runner = Runner(app_name=APP_NAME, agent=agent, session_service=coordination.sessions)
        await coordination.drive(runner, run)

    print(rises(run.events))
    assert max(rises(run.events)) <= LIMIT
    assert run.results[0]["summary"] == SUMMARY, "the session has less than the program is to read"
