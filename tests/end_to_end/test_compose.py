"""All of docker-compose.yml, built and running, with both versions of Compose.

A build takes minutes and needs the package index, so it is asked for: `make compose`. Its images
(`fanout-test/…`) stay on the engine: the next build is of what has changed.
"""

from __future__ import annotations

import asyncio
import json
import os
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
from tests.end_to_end.compose_stack import LOGIN, PROGRAMS, Stack, new_stack, program_of
from tests.end_to_end.registry_stand_ins import PYTHON, REDIS, make_stand_ins
from tests.integration.scripts import DONE, conversation, shell, write_script
from tests.services import containers_of, docker, volumes_of
from tests.waits import eventually

ASKED_FOR = "COMPOSE_BUILD"
BUILT = "fanout-test/compose-built"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.docker,
    pytest.mark.timeout(900),
    pytest.mark.skipif(ASKED_FOR not in os.environ, reason="`make compose` builds images."),
]

START_SECONDS = 120.0
GRACE_SECONDS = 60
WORKERS = 3


@pytest.fixture(scope="module", params=PROGRAMS)
def stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """Redis, the engine's proxy, a server, Flower and three workers, from a build of this tree."""
    program = program_of(request.param)
    make_stand_ins()
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
    made = new_stack(
        *(program, folder, script, {"image": BUILT}),
        FANOUT_IMAGE_BASE=PYTHON,
        FANOUT_REDIS_IMAGE=REDIS,
    )
    try:
        made.run("build")
        made.make_key()  # without one the server refuses an address that others reach
        made.start()
        yield made
    finally:
        made.remove()


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[JobClient]:
    """A parent's client; three workers are there when the test begins."""
    settings = await asyncio.to_thread(lambda: stack.settings)
    async with JobClient.from_settings(settings) as client:
        await asyncio.to_thread(stack.start)
        await _until_alive(stack, client, WORKERS)
        yield client


async def _until_alive(stack: Stack, client: JobClient, workers: int) -> None:
    try:
        await eventually(client.workers, lambda seen: len(seen) == workers, START_SECONDS)
    except AssertionError:
        raise AssertionError(await asyncio.to_thread(stack.run, "logs", "worker")) from None


async def _submitted(client: JobClient, what: str, count: int, folder: Path) -> list[str]:
    (folder / "given.txt").write_text("given\n")
    specs = [JobSpec(agent="general-purpose", description=what) for _ in range(count)]
    return await client.submit_many([(spec, folder) for spec in specs])


async def _all_run(client: JobClient, ids: Sequence[str]) -> list[str]:
    """The workers that they run on, once all of them have got beyond their first command."""
    records = await eventually(
        lambda: client.records(ids),
        lambda records: all(one.state is JobState.RUNNING and one.worker for one in records),
        START_SECONDS,
    )
    return [str(record.worker) for record in records]


async def _lines(client: JobClient, job_id: str) -> list[str]:
    """What the job's commands wrote."""
    async with client.changes(job_id) as bundle:
        patch = (await asyncio.to_thread(bundle.patch)).decode()
    return [
        line[1:]
        for line in patch.splitlines()
        if line.startswith("+") and not line.startswith("+++")
    ]


@pytest.mark.representative
async def test_all_services_become_healthy_with_bounded_logs_and_memory(stack, client):
    services = ["engine", "flower", "redis", "server", *["worker"] * WORKERS]
    states = await eventually(
        lambda: asyncio.to_thread(stack.states),
        lambda states: (
            sorted(name.split()[0] for name in states) == services
            and all("(healthy)" in state for state in states.values())
        ),
        START_SECONDS,
    )
    for name in states:
        shown = json.loads(await asyncio.to_thread(docker, "inspect", name.split()[1]))[0]
        assert shown["HostConfig"]["LogConfig"]["Config"] == {"max-size": "10m", "max-file": "3"}
        assert shown["HostConfig"]["Memory"] > 0
    [worker, *_] = [one for name, one in ((n, n.split()[1]) for n in states) if "worker" in name]
    check = ("exec", worker, "python3", "-P", "-m", "fanout.workers.health")
    assert await asyncio.to_thread(docker, *check) == ""
    assert {one.host_limit for one in await client.workers()} == {8}


@pytest.mark.representative
async def test_a_job_is_submitted_to_the_server_with_a_key_that_it_made(stack, client):
    headers = {"Authorization": f"Bearer {stack.key}", "Content-Type": "application/json"}
    base = f"http://127.0.0.1:{stack.environment['FANOUT_SERVER_PORT']}"

    def ask(path: str, body: dict[str, str] | None = None) -> dict[str, str]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(base + path, data=data, headers=headers)  # noqa: S310 - http
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - as above
            shown: dict[str, str] = json.loads(answer.read())
            return shown

    job = await asyncio.to_thread(ask, "/v1/jobs", {"description": "quick"})
    ended = await asyncio.to_thread(ask, f"/v1/jobs/{job['id']}?wait=50")

    assert ended["state"] == "succeeded", ended


async def test_workers_run_jobs_in_sandboxes_and_share_their_hosts_limit(client, tmp_path):
    ids = await _submitted(client, "slow", 6, tmp_path)
    workers = await _all_run(client, ids)
    results = [await client.wait(job_id) for job_id in ids]

    assert {(result.state, result.sandbox) for result in results} == {
        (JobState.SUCCEEDED, "docker")
    }
    assert len(set(workers)) == WORKERS
    assert len({worker.host for worker in await client.workers()}) == 1
    assert [await _lines(client, job_id) for job_id in ids] == [["one", "two"]] * 6


async def test_a_stopped_worker_gives_its_jobs_to_the_other_one(stack, client, tmp_path):
    [job_id] = await _submitted(client, "slow", 1, tmp_path)
    [worker] = await _all_run(client, [job_id])
    began = time.monotonic()

    await asyncio.to_thread(
        docker, "stop", "--time", str(GRACE_SECONDS), stack.container_of(worker)
    )
    stopped_after = time.monotonic() - began
    result = await client.wait(job_id, timeout_seconds=60)

    assert stopped_after < GRACE_SECONDS, "it was killed by the engine"
    assert (result.state, result.attempts) == (JobState.SUCCEEDED, 1)
    assert (await client.get(job_id)).worker != worker
    assert await _lines(client, job_id) == ["one", "two"]


@pytest.mark.representative
async def test_the_jobs_of_a_killed_worker_go_on_at_another_one(stack, client, tmp_path):
    [job_id] = await _submitted(client, "slow", 1, tmp_path)
    [worker] = await _all_run(client, [job_id])

    await asyncio.to_thread(docker, "kill", "--signal", "KILL", stack.container_of(worker))
    result = await client.wait(job_id, timeout_seconds=120)

    assert (result.state, result.attempts) == (JobState.SUCCEEDED, 2)
    assert await _lines(client, job_id) == ["one", "two"]


async def test_jobs_end_once_while_one_of_three_workers_is_killed_and_another_one_is_added(
    stack, client, tmp_path
):
    ids = await _submitted(client, "slow", 3 * WORKERS, tmp_path)
    lost = await _at_work(client, ids)

    await asyncio.to_thread(docker, "kill", "--signal", "KILL", stack.container_of(lost))
    await asyncio.to_thread(stack.start, WORKERS + 1)
    results = [await client.wait(job_id, timeout_seconds=120) for job_id in ids]

    assert {result.state for result in results} == {JobState.SUCCEEDED}
    assert {result.attempts for result in results} <= {1, 2}
    for job_id in ids:
        events = [event async for event in client.events(job_id, follow=False)]
        assert sum(event.ends_job for event in events) == 1
        assert await _lines(client, job_id) == ["one", "two"]


async def _at_work(client: JobClient, ids: Sequence[str]) -> str:
    """Wait until one of the jobs runs, and return its worker."""

    async def workers() -> list[str]:
        records = await client.records(ids)
        return [one.worker for one in records if one.state is JobState.RUNNING and one.worker]

    return str((await eventually(workers, seconds=START_SECONDS))[0])


async def test_a_worker_that_is_added_takes_jobs(stack, client, tmp_path):
    await asyncio.to_thread(stack.start, WORKERS + 1)
    await _until_alive(stack, client, WORKERS + 1)
    before = {worker.name for worker in await client.workers()}
    ids = await _submitted(client, "slow", 16, tmp_path)
    for job_id in ids:
        assert (await client.wait(job_id)).state is JobState.SUCCEEDED

    assert {(await client.get(job_id)).worker for job_id in ids} == before


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


async def test_down_leaves_nothing(stack, client, tmp_path):
    identity = await asyncio.to_thread(lambda: stack.identity)
    ids = await _submitted(client, "quick", 2, tmp_path)
    for job_id in ids:
        await client.wait(job_id)

    await asyncio.to_thread(stack.run, "--profile", "server", "down", "--volumes")

    assert containers_of(identity) == []
    assert volumes_of(identity) == []
    left = await asyncio.to_thread(docker, "ps", "-aq", "--filter", f"name={stack.project}")
    assert left == ""
