"""All of docker-compose.yml running, where its images are, with both versions of Compose."""

from __future__ import annotations

import asyncio
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.state import JobState
from tests.end_to_end.compose_stack import (
    LOGIN,
    PROGRAMS,
    Stack,
    docker,
    new_stack,
    program_of,
    require_images,
)
from tests.integration.scripts import DONE, conversation, shell, write_script
from tests.services import REPOSITORY, containers_of, volumes_of

pytestmark = pytest.mark.slow

IMAGES = ("fanout/worker", "redis:7.4-alpine", "fanout/python:latest")
START_SECONDS = 60.0


@pytest.fixture(scope="module", params=PROGRAMS)
def stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """Redis, Flower and two workers that run this checkout's code in the worker's image."""
    program = program_of(request.param)
    require_images(*IMAGES)
    folder = tmp_path_factory.mktemp("compose")
    blobs = folder / "blobs"
    blobs.mkdir()
    script = write_script(
        blobs,
        conversation("quick", shell("echo done >> /workspace/steps.txt"), DONE),
        conversation(
            "slow",
            shell("echo one >> /workspace/steps.txt"),
            {**shell("echo two >> /workspace/steps.txt"), "delay_seconds": 5},
            DONE,
        ),
    )
    made = new_stack(program, folder, script, {"volumes": [f"{REPOSITORY}:/opt/fanout:ro"]})
    try:
        made.start()
        yield made
    finally:
        made.remove()


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[JobClient]:
    """A parent's client; two workers are there when the test begins."""
    settings = await asyncio.to_thread(lambda: stack.settings)
    async with JobClient.from_settings(settings) as client:
        await asyncio.to_thread(stack.start)
        deadline = time.monotonic() + START_SECONDS
        while len(await client.workers()) != 2:
            assert time.monotonic() < deadline, await asyncio.to_thread(stack.run, "logs", "worker")
            await asyncio.sleep(0.2)
        yield client


async def _submitted(client: JobClient, what: str, count: int, folder: Path) -> list[str]:
    (folder / "given.txt").write_text("given\n")
    specs = [JobSpec(agent="general-purpose", description=what) for _ in range(count)]
    return await client.submit_many([(spec, folder) for spec in specs])


async def _all_run(client: JobClient, ids: Sequence[str]) -> list[str]:
    """The workers that they run on, once all of them have got beyond their first command."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        records = [await client.get(job_id) for job_id in ids]
        if all(record.state is JobState.RUNNING and record.worker for record in records):
            return [str(record.worker) for record in records]
        assert time.monotonic() < deadline, records
        await asyncio.sleep(0.1)


async def _lines(client: JobClient, job_id: str) -> list[str]:
    """What the job's commands wrote."""
    async with client.changes(job_id) as bundle:
        patch = (await asyncio.to_thread(bundle.patch)).decode()
    return [
        line[1:]
        for line in patch.splitlines()
        if line.startswith("+") and not line.startswith("+++")
    ]


@pytest.mark.docker
@pytest.mark.timeout(180)
async def test_both_workers_run_jobs_in_sandboxes_and_share_their_hosts_limit(client, tmp_path):
    ids = await _submitted(client, "slow", 4, tmp_path)
    workers = await _all_run(client, ids)
    results = [await client.wait(job_id) for job_id in ids]

    assert {(result.state, result.sandbox) for result in results} == {
        (JobState.SUCCEEDED, "docker")
    }
    assert len(set(workers)) == 2
    assert len({worker.host for worker in await client.workers()}) == 1
    assert [await _lines(client, job_id) for job_id in ids] == [["one", "two"]] * 4


@pytest.mark.docker
@pytest.mark.timeout(180)
async def test_a_stopped_worker_gives_its_jobs_to_the_other_one(stack, client, tmp_path):
    [job_id] = await _submitted(client, "slow", 1, tmp_path)
    [worker] = await _all_run(client, [job_id])
    began = time.monotonic()

    await asyncio.to_thread(docker, "stop", "--time", "60", stack.container_of(worker))
    stopped_after = time.monotonic() - began
    result = await client.wait(job_id, timeout_seconds=60)

    assert stopped_after < 6
    assert (result.state, result.attempts) == (JobState.SUCCEEDED, 1)
    assert (await client.get(job_id)).worker != worker
    assert await _lines(client, job_id) == ["one", "two"]


@pytest.mark.docker
@pytest.mark.timeout(180)
async def test_the_jobs_of_a_killed_worker_go_on_within_twenty_seconds(stack, client, tmp_path):
    [job_id] = await _submitted(client, "slow", 1, tmp_path)
    [worker] = await _all_run(client, [job_id])

    await asyncio.to_thread(docker, "kill", "--signal", "KILL", stack.container_of(worker))
    began = time.monotonic()
    while (await client.get(job_id)).worker == worker:
        assert time.monotonic() - began < 20
        await asyncio.sleep(0.2)
    result = await client.wait(job_id, timeout_seconds=60)

    assert (result.state, result.attempts) == (JobState.SUCCEEDED, 2)
    assert await _lines(client, job_id) == ["one", "two"]


@pytest.mark.docker
@pytest.mark.timeout(180)
async def test_flower_asks_for_the_password(stack):
    answers = [
        await asyncio.to_thread(_flower_status, stack, login)
        for login in (None, "tester:wrong", LOGIN)
    ]

    assert answers == [401, 401, 200]


def _flower_status(stack: Stack, login: str | None) -> int:
    url = f"http://127.0.0.1:{stack.environment['FANOUT_FLOWER_PORT']}/workers"
    headers = {"Authorization": "Basic " + b64encode(login.encode()).decode()} if login else {}
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, headers=headers), timeout=10
            ) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            assert time.monotonic() < deadline, "Flower did not start"
            time.sleep(0.3)


@pytest.mark.docker
@pytest.mark.timeout(180)
async def test_down_leaves_nothing(stack, client, tmp_path):
    identity = await asyncio.to_thread(lambda: stack.identity)
    ids = await _submitted(client, "quick", 2, tmp_path)
    for job_id in ids:
        await client.wait(job_id)

    await asyncio.to_thread(stack.run, "down", "--volumes")

    assert containers_of(identity) == []
    assert volumes_of(identity) == []
    left = await asyncio.to_thread(docker, "ps", "-aq", "--filter", f"name={stack.project}")
    assert left == ""
