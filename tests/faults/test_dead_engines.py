"""An engine that is away, hangs or refuses costs no job an attempt, and other hosts no job."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.jobs.worker_info import WorkerInfo
from fanout.workers.health import find_problem
from tests.builders import make_spec
from tests.faults.engine_socket import EngineSocket, Mood, engine_socket
from tests.fixtures import place_fixture
from tests.integration.scripts import DONE, conversation, shell
from tests.services import Installation
from tests.waits import eventually, until_event

pytestmark = [pytest.mark.redis, pytest.mark.docker, pytest.mark.timeout(300)]

SCRIPT = (
    conversation("^write", shell("echo made > made.txt"), DONE),
    conversation("^long", shell("echo begun; [ -e go ] || { touch go; sleep 600; }"), DONE),
)
SAYS: dict[Mood, str] = {
    "away": "No Docker engine answers at",
    "fails": "answers with an error (500)",
    "forbids": "is closed to this user (403)",
    "is full": "no space left on device",
    "hangs": "does not answer: restart Docker",
}


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[EngineSocket]:
    async with engine_socket(tmp_path) as socket:
        yield socket


place = place_fixture(*SCRIPT)


def start_docker_worker(place: Installation, engine: EngineSocket) -> None:
    place.start_worker(
        FANOUT_SANDBOX__PROVIDER="docker", FANOUT_SANDBOX__WARM="0", DOCKER_HOST=engine.url
    )


async def test_a_host_whose_engine_is_away_takes_no_job_from_the_others(
    place: Installation, engine: EngineSocket
) -> None:
    start_docker_worker(place, engine)
    async with place.client() as client:
        await place.ready(client)
        (first,) = await client.workers()
        place.start_worker()
        await place.ready(client, 2)

        await engine.set("away")
        ids = [await client.submit(make_spec("write", max_attempts=1)) for _ in range(8)]
        results = [await client.wait(job_id) for job_id in ids]
        records = await client.records(ids)
        unfit = await unfit_worker(client)

    assert [result.state for result in results] == [JobState.SUCCEEDED] * 8
    assert {result.attempts for result in results} == {1}
    assert {result.sandbox for result in results} == {"local"}
    assert first.name not in {record.worker for record in records}
    assert (unfit.name, unfit.draining) == (first.name, True)


@pytest.mark.parametrize("mood", SAYS)
async def test_jobs_wait_for_the_only_engine_and_run_in_their_first_attempt(
    place: Installation, engine: EngineSocket, mood: Mood
) -> None:
    start_docker_worker(place, engine)
    async with place.client() as client:
        await place.ready(client)
        await engine.set(mood)
        ids = [await client.submit(make_spec("write", max_attempts=1)) for _ in range(2)]
        unfit = await unfit_worker(client, SAYS[mood])
        waiting = await _waiting_for(client, ids[0], "a fit worker")
        host = unfit.name.rpartition("-")[0]
        problem = await find_problem(place.redis.url, "fanout", host)

        await engine.set("well")
        results = [await client.wait(job_id) for job_id in ids]

    assert SAYS[mood] in unfit.unfit
    assert unfit.unfit in waiting
    assert unfit.unfit in problem
    assert [result.state for result in results] == [JobState.SUCCEEDED] * 2
    assert {result.attempts for result in results} == {1}


async def test_a_job_whose_engine_ends_in_the_middle_continues_in_its_first_attempt(
    place: Installation, engine: EngineSocket
) -> None:
    start_docker_worker(place, engine)
    async with place.client() as client:
        await place.ready(client)
        job_id = await client.submit(make_spec("long", max_attempts=1))
        await until_event(client, job_id, EventType.TOOL_CALL)
        await engine.set("away")
        await unfit_worker(client)
        await engine.set("well")
        result = await client.wait(job_id)

    assert (result.state, result.attempts) == (JobState.SUCCEEDED, 1)


async def unfit_worker(client: JobClient, because: str = "") -> WorkerInfo:
    """The first worker that says it is unfit, once one does.

    Args:
        because: What it has to say: an engine that cuts its connections seems away at first.
    """

    def unfit(workers: list[WorkerInfo]) -> list[WorkerInfo]:
        return [one for one in workers if one.unfit and because in one.unfit]

    return unfit(await eventually(client.workers, unfit, 120))[0]


async def _waiting_for(client: JobClient, job_id: str, beginning: str) -> str:
    record = await eventually(
        lambda: client.get(job_id),
        lambda record: (record.waiting_for or "").startswith(beginning),
        120,
    )
    return str(record.waiting_for)
