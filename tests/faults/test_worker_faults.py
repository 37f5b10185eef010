"""What dies, and what must not be lost by it: real Redis, real workers, real sandboxes."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.spec import Limits
from fanout.orchestrator.jobs.state import JobRecord, JobState
from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.faults.stopping import let_go, until_prints
from tests.integration.worker.approvals import file_of
from tests.services import (
    Installation,
    WorkerProcess,
    containers_of,
    volumes_of,
    workers_of_sandboxes,
)
from tests.waits import eventually, until_event

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]


async def until_runs_again(client: JobClient, job_id: str) -> None:
    """Wait until a second attempt has begun."""
    await until_event(
        client, job_id, lambda event: event.data.get("state") == "running" and event.attempt == 2
    )


async def states(client: JobClient, job_id: str) -> list[str]:
    return [
        str(event.data["state"])
        async for event in client.events(job_id, follow=False)
        if event.type is EventType.JOB_STATE
    ]


async def two_workers(place: Installation, client: JobClient) -> None:
    for _ in range(2):
        place.start_worker()
    await place.ready(client, 2)


def holder(place: Installation, record: JobRecord) -> WorkerProcess:
    """The worker that runs a job."""
    pids = {str(worker.process.pid): worker for worker in place.workers if worker.process}
    return pids[str(record.worker).rpartition("-")[2]]


async def ends_with_nothing_left(place: Installation) -> None:
    """Stop the place once its living workers have removed what killed ones left; nothing is left.

    What a killed worker had goes 20 s after its death, if a worker lives that long.
    """
    processes = [worker.process for worker in place.workers if worker.process]
    living = {str(process.pid) for process in processes if process.poll() is None}
    await eventually(
        lambda: not (place.provider == "docker" and living and not living.issuperset(owners(place)))
    )
    place.stop()
    await nothing_left(place)


def owners(place: Installation) -> set[str]:
    """The process ids of the workers of which there is a sandbox, or what is left of one."""
    return {name.rpartition("-")[2] for name in workers_of_sandboxes(place.identity)}


async def nothing_left(place: Installation) -> None:
    """No container or volume of a job, and no folder of one, however it ended."""
    sandboxes = place.folder / "state" / "sandboxes"

    def left() -> list[str]:
        found = [path.name for path in sandboxes.glob("jobs/*")] if sandboxes.is_dir() else []
        if place.provider == "docker":
            found += containers_of(place.identity) + volumes_of(place.identity)
        return found

    await eventually(left, lambda found: not found)


@pytest.mark.representative
async def test_a_job_whose_worker_is_killed_goes_on_elsewhere_and_ends_once(
    shipped_place: Installation, workspace: Path
) -> None:
    place = shipped_place
    async with place.client() as client:
        await two_workers(place, client)
        job_id = await client.submit(make_spec("steps"), workspace=workspace)
        await until_event(client, job_id, EventType.TOOL_CALL, 2)
        first = holder(place, await client.get(job_id))
        first.kill()

        result = await client.wait(job_id, 90)

        assert result.success, result.error
        assert result.attempts == 2
        names = await states(client, job_id)
        assert names == ["queued", "running", "queued", "running", "succeeded"]
        steps = await file_of(client, job_id, "steps.txt")
        assert steps.splitlines()[0] == "one"
        assert steps.count("one") == 1, "a finished step was done again"
        assert "three" in steps
    await ends_with_nothing_left(place)


@pytest.mark.representative
async def test_jobs_survive_a_killed_redis_queued_and_running(
    place: Installation, workspace: Path
) -> None:
    place.start_worker(concurrency=2)
    async with place.client() as client:
        await place.ready(client)
        jobs = [(make_spec("short", root_id="tree"), workspace) for _ in range(10)]
        ids = await client.submit_many(jobs)
        await until_event(client, ids[0], EventType.TOOL_CALL)
        place.redis.kill()
        await asyncio.sleep(2)  # an outage
        place.redis.start()

        results = [await client.wait(job_id, 90) for job_id in ids]

        assert [result.state for result in results] == [JobState.SUCCEEDED] * 10
    await ends_with_nothing_left(place)


async def test_a_cancelled_command_is_gone_and_what_it_changed_is_kept(
    place: Installation, workspace: Path
) -> None:
    place.start_worker()
    async with place.client() as client:
        await place.ready(client)
        job_id = await client.submit(make_spec("long command"), workspace=workspace)
        await until_prints(client, job_id)

        before = await client.cancel(job_id)
        result = await client.wait(job_id, 60)

        assert before.state is JobState.RUNNING
        assert result.state is JobState.CANCELLED
        assert [file.path for file in result.files_modified] == ["before.txt"]
    await ends_with_nothing_left(place)


async def test_a_job_over_its_time_ends_timed_out_with_its_changes(
    place: Installation, workspace: Path
) -> None:
    place.start_worker()
    async with place.client() as client:
        await place.ready(client)
        spec = make_spec("long command", limits=Limits(timeout_seconds=3))
        result = await client.wait(await client.submit(spec, workspace=workspace), 60)

        assert result.state is JobState.TIMED_OUT
        assert result.error is not None
        assert "time limit of 3 s" in result.error.message
        assert [file.path for file in result.files_modified] == ["before.txt"]
        assert 3 <= result.execution_seconds < 60
    await ends_with_nothing_left(place)


async def test_a_worker_that_is_told_to_stop_gives_its_jobs_back_unharmed(
    place: Installation, workspace: Path
) -> None:
    async with place.client() as client:
        await two_workers(place, client)
        job_id = await client.submit(make_spec("steps"), workspace=workspace)
        await until_event(client, job_id, EventType.TOOL_CALL, 2)
        first = holder(place, await client.get(job_id))
        first.stop()

        result = await client.wait(job_id, 60)

        assert first.process is not None
        assert first.process.returncode == 0
        assert result.success, result.error
        assert result.attempts == 1, "a shutdown used up an attempt"
        assert await states(client, job_id) == [
            *("queued", "running", "queued", "running", "succeeded")
        ]
        assert (await file_of(client, job_id, "steps.txt")).count("one") == 1
    await ends_with_nothing_left(place)


async def test_a_paused_worker_stops_by_itself_and_its_job_runs_once_at_a_time(
    place: Installation, workspace: Path
) -> None:

    async with place.client() as client:
        await two_workers(place, client)
        job_id = await client.submit(make_spec("steps"), workspace=workspace)
        await until_event(client, job_id, EventType.TOOL_CALL, 2)
        first = holder(place, await client.get(job_id))
        first.send(signal.SIGSTOP)
        await until_runs_again(client, job_id)
        first.send(signal.SIGCONT)

        result = await client.wait(job_id, 60)

        assert result.success, result.error
        names = await states(client, job_id)
        assert names == ["queued", "running", "queued", "running", "succeeded"]
    await ends_with_nothing_left(place)


async def test_killing_every_worker_leaves_nothing_once_one_is_back(
    place: Installation, workspace: Path
) -> None:
    worker = place.start_worker()
    async with place.client() as client:
        await place.ready(client)
        spec = make_spec("long command", max_attempts=1)
        job_id = await client.submit(spec, workspace=workspace)
        await until_event(client, job_id, EventType.TOOL_CALL)
        worker.kill()
        place.start_worker()

        result = await client.wait(job_id, 60)

        assert result.state is JobState.FAILED
        assert result.error is not None
        assert result.error.type == "AttemptsUsedUp"
        assert not await let_go(place, 60)  # of any job, or of the dead worker
    await ends_with_nothing_left(place)
