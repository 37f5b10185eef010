"""All of docker-compose.yml running, where its images are, with both versions of Compose."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
import yaml
from redis import RedisError

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.settings import Settings, load_settings
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.state import JobState
from tests.integration.scripts import DONE, conversation, shell, write_script
from tests.services import REPOSITORY, containers_of, identity_in, volumes_of

pytestmark = pytest.mark.slow

COMPOSE = REPOSITORY / "docker-compose.yml"
IMAGES = ("fanout/worker", "redis:7.4-alpine", "fanout/python:latest")
LOGIN = "tester:letmein"
START_SECONDS = 60.0
PROGRAMS = {"v1": ("docker-compose",), "v2": ("docker", "compose")}
"""Version 1 is a program, version 2 a plugin of Docker's command line."""


def compose(
    program: Sequence[str],
    environment: dict[str, str],
    *arguments: str,
    more: Sequence[Path] = (),
) -> str:
    files = [option for path in (COMPOSE, *more) for option in ("-f", str(path))]
    command = [*program, *files, "--project-directory", str(REPOSITORY), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclass
class Stack:
    """A running Compose project of this test's own."""

    program: Sequence[str]
    environment: dict[str, str]
    override: Path

    @cached_property
    def identity(self) -> str:
        """The id that its ledger keeps, with which everything is labelled that its workers make."""
        return identity_in(
            f"redis://fanout-worker:workers@127.0.0.1:{self.environment['FANOUT_REDIS_PORT']}/0"
        )

    @property
    def project(self) -> str:
        return self.environment["COMPOSE_PROJECT_NAME"]

    def run(self, *arguments: str) -> str:
        return compose(self.program, self.environment, *arguments, more=[self.override])

    def start(self) -> None:
        self.run("up", "--detach", "--no-build", "--scale", "worker=2")

    def containers(self, service: str) -> list[str]:
        label = f"label=com.docker.compose.project={self.project}"
        of_service = f"label=com.docker.compose.service={service}"
        return _docker("ps", "-q", "--filter", label, "--filter", of_service).split()

    def container_of(self, worker: str) -> str:
        """A worker names itself after its host, which is its container."""
        return next(one for one in self.containers("worker") if worker.startswith(one))


def _docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _require_images(program: Sequence[str]) -> None:
    """No registry can be counted on, so the images are not built here, not even in CI."""
    if shutil.which(program[0]) is None or shutil.which("docker") is None:
        pytest.skip(f"There is no {' '.join(program)}.")
    if subprocess.run([*program, "version"], capture_output=True, check=False).returncode:
        pytest.skip(f"There is no {' '.join(program)}.")
    for image in IMAGES:
        found = subprocess.run(
            ["docker", "image", "inspect", image], capture_output=True, check=False
        )
        if found.returncode:
            pytest.skip(
                f"The engine has no {image}: `docker-compose build` and `fanout images build` make it."
            )


@pytest.fixture(scope="module", params=PROGRAMS)
def stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """Redis, Flower and two workers that run this checkout's code in the worker's image."""
    program = PROGRAMS[request.param]
    _require_images(program)
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
    override = folder / "override.yml"
    override.write_text(
        yaml.safe_dump(
            {
                "services": {
                    name: {"volumes": [f"{REPOSITORY}:/opt/fanout:ro"]}
                    for name in ("worker", "engine", "flower")
                }
            }
        )
    )
    port = _free_port()
    environment = {
        "PATH": os.environ["PATH"],
        **({"DOCKER_CONFIG": plugins} if (plugins := os.environ.get("DOCKER_CONFIG")) else {}),
        "COMPOSE_PROJECT_NAME": f"fanout-test-{port}",
        "FANOUT_USER": f"{os.getuid()}:{os.getgid()}",
        "FANOUT_REDIS_PASSWORD": "secret",
        "FANOUT_WORKER_PASSWORD": "workers",
        "FANOUT_DASHBOARD_PASSWORD": "flowers",
        "FANOUT_REDIS_PORT": str(port),
        "FANOUT_FLOWER_PORT": str(_free_port()),
        "FLOWER_BASIC_AUTH": LOGIN,
        "FANOUT_BLOBS_FOLDER": str(blobs),
        "FANOUT_WORKER__CONCURRENCY": "2",
        "FANOUT_MODEL": f"scripted:{script}",
    }
    made = Stack(program, environment, override)
    try:
        made.start()
        yield made
    finally:
        identity = ""
        with suppress(AssertionError, RedisError):  # no worker has started
            identity = made.identity
        made.run("down", "--volumes")
        for volume in volumes_of(identity) if identity else ():
            _docker("volume", "rm", volume)


@pytest.fixture
def parent(stack: Stack) -> Settings:
    """The settings of a parent on the host."""
    url = f"redis://fanout-client:secret@127.0.0.1:{stack.environment['FANOUT_REDIS_PORT']}/0"
    return load_settings(
        redis_url=url, blobs_url=f"file://{stack.environment['FANOUT_BLOBS_FOLDER']}"
    )


@pytest.fixture
async def client(stack: Stack, parent: Settings) -> AsyncIterator[JobClient]:
    """A parent's client; two workers are there when the test begins."""
    async with JobClient.from_settings(parent) as client:
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

    await asyncio.to_thread(_docker, "stop", "--time", "60", stack.container_of(worker))
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

    await asyncio.to_thread(_docker, "kill", "--signal", "KILL", stack.container_of(worker))
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
    left = await asyncio.to_thread(_docker, "ps", "-aq", "--filter", f"name={stack.project}")
    assert left == ""
