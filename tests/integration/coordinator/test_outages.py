"""What a coordinator does when its Redis is gone, and when it is killed itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.adk.sessions.sqlite_session_service import SqliteSessionService

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.store import outage
from fanout.orchestrator.jobs.store.journal import EventType
from tests.forked import ForkedProcess
from tests.integration.coordinator.driving import WORKER_SCRIPT, Coordination, Run, journal, task
from tests.integration.scripts import call, calls, conversation, says, write_script
from tests.services import Installation, Installer
from tests.waits import eventually

pytestmark = pytest.mark.redis

AWAY_SECONDS = 1.0
"""An outage that a task outlives: many attempts to connect."""


@pytest.fixture
def own_place(install: Installer) -> Installation:
    """A Redis of its own, and no worker yet."""
    return install(*WORKER_SCRIPT)


@pytest.fixture
async def fragile(
    own_place: Installation, tmp_path: Path, workspace: Path
) -> AsyncIterator[tuple[Coordination, Installation]]:
    async with own_place.client() as client:
        yield Coordination(client, tmp_path, workspace), own_place


async def test_without_redis_every_tool_answers_with_an_error(
    fragile: tuple[Coordination, Installation],
) -> None:
    coordination, place = fragile
    place.redis.kill()

    run = await coordination.run(
        calls(
            task("run: true"),
            call("tasks", tasks=[{"description": "run: true"}]),
            call("start_task", description="run: true"),
            call("check_task", task_id="x"),
            call("wait_tasks", task_ids=["x"]),
            call("cancel_task", task_id="x"),
            call("list_tasks"),
        )
    )

    by_tool = run.results
    assert len(by_tool) == 7
    answers = [answer for result in by_tool for answer in result.get("results", [result])]
    assert [answer["status"] for answer in answers] == ["error"] * 7
    assert all("Redis does not answer" in answer["error"] for answer in answers)
    assert not [answer for answer in answers if str(place.redis.port) in answer["error"]]
    assert run.text == "all done"


async def waiting_for_a_job(
    coordination: Coordination, description: str, progress: str
) -> tuple[Run, asyncio.Task[None]]:
    run = Run(await coordination.new_session())
    runner = coordination.runner(calls(task(description)), says("all done"))
    going = asyncio.create_task(coordination.drive(runner, run))
    await coordination.until_progress(run, progress)
    return run, going


@pytest.mark.slow
async def test_a_task_waits_through_a_restart_of_redis(
    fragile: tuple[Coordination, Installation],
) -> None:
    coordination, place = fragile
    place.start_worker()
    await place.ready(coordination.client)
    run, going = await waiting_for_a_job(
        coordination, "run: sleep 2; echo new > new.txt", "execute"
    )
    place.redis.kill()
    await asyncio.sleep(AWAY_SECONDS)
    await asyncio.to_thread(place.redis.start)
    async with asyncio.timeout(60):
        await going

    (result,) = run.results
    assert (result["status"], result["merge"]["applied"]) == ("success", 1), result


@pytest.mark.slow
async def test_redis_that_stays_away_is_an_answer_that_names_the_job(
    fragile: tuple[Coordination, Installation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "OUTAGE_SECONDS", 1)
    coordination, place = fragile
    run, going = await waiting_for_a_job(coordination, "run: true", "queued")
    job_id = (run.progress[0].custom_metadata or {})["job_id"]
    place.redis.kill()
    async with asyncio.timeout(60):
        await going

    (result,) = run.results
    assert (result["status"], result["task_id"]) == ("error", job_id)
    assert "Redis does not answer" in result["error"]
    assert run.text == "all done"


async def test_a_run_can_be_cancelled_while_redis_is_gone(
    fragile: tuple[Coordination, Installation],
) -> None:
    coordination, place = fragile
    _, going = await waiting_for_a_job(coordination, "run: true", "queued")
    place.redis.kill()
    going.cancel()
    async with asyncio.timeout(60):
        await asyncio.wait({going})
    assert going.cancelled()


@pytest.mark.slow
@pytest.mark.parametrize("job_is", ["running", "merged"])
async def test_a_coordinator_killed_in_a_task_goes_on_with_the_same_job(
    shared_place: Installation, coordination: Coordination, tmp_path: Path, job_is: str
) -> None:
    client = coordination.client
    database = str(tmp_path / "sessions.db")
    coordination.sessions = SqliteSessionService(database)
    session_id = await coordination.new_session()
    replies = (calls(task("run: sleep 1.5; echo once >> kept.txt")), says("went on"))
    script = write_script(tmp_path, conversation("", *replies))
    arguments = [database, session_id, str(script), str(coordination.workspace)]
    process = await asyncio.to_thread(start_coordinator, shared_place, arguments)
    try:
        job_id = await begun_job(client, Run(session_id).root_id)
    finally:
        process.kill()
        process.wait(60)
    if job_is == "merged":  # killed between the merge and the session's next event
        await client.merge(await client.wait(job_id, 60), coordination.workspace)

    session = await coordination.session(Run(session_id))
    again = Run(session_id)
    await coordination.drive(
        coordination.runner(*replies), again, invocation_id=session.events[-1].invocation_id
    )

    assert again.text == "went on"
    assert [(result["status"], result["task_id"]) for result in again.results] == [
        ("success", job_id)
    ]
    assert [record.id for record in await client.tree(again.root_id)] == [job_id]
    states = [
        event.data["state"]
        for event in await journal(client, job_id)
        if event.type is EventType.JOB_STATE
    ]
    assert states == ["queued", "running", "succeeded"]
    assert (coordination.workspace / "kept.txt").read_text() == "kept\nonce\n"


def start_coordinator(place: Installation, arguments: list[str]) -> ForkedProcess:
    module = "tests.integration.coordinator.coordinator_process"
    return ForkedProcess(module, arguments, place.environment)


async def begun_job(client: JobClient, root_id: str) -> str:
    """The tree's only job, once its command runs."""

    async def at_work() -> list[str]:
        return [
            record.id
            for record in await client.list()
            if record.root_id == root_id
            and EventType.TOOL_CALL in [event.type for event in await journal(client, record.id)]
        ]

    return str((await eventually(at_work))[0])
