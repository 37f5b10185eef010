"""A job of thirty steps, killed once at each of them: resumed, not restarted.

Ten jobs run side by side; the first is killed at its steps 1, 11 and 21, the second at 2, 12 and
22, and so on. Each kill is of the whole worker, and hits all of them. They are compared with one
that nothing disturbed. In Docker the containers of nine of them are killed before, from outside and
from inside, while the worker lives.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import get_args

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.deep_agent.prompts import CALL_INTERRUPTED
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.conftest import docker_answers
from tests.faults.stepping import BEGUN, STEPS, Holds, Moment, SteppingModel, stepping_model
from tests.services import ForkedWorker, Installation, Installer, WorkerProcess
from tests.waits import eventually

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

MOMENTS: tuple[Moment, ...] = get_args(Moment)
JOBS = 10
ROUNDS = STEPS // JOBS
UNDISTURBED = "job-0"


def rounds(provider: str) -> list[Holds]:
    """Where each kill hits each job; the moments take turns, and with Docker at other steps."""
    shift = 0 if provider == "local" else 1
    return [
        {
            (f"job-{step - first}", step): MOMENTS[(step + first // JOBS + shift) % len(MOMENTS)]
            for step in range(first + 1, first + JOBS + 1)
        }
        for first in range(0, STEPS, JOBS)
    ]


def container_kills(provider: str) -> Holds:
    """Where a container is killed, at steps 1 to 9.

    While a command runs, whose effect is known then.
    """
    return (
        {(f"job-{step + 1}", step): "command" for step in range(1, JOBS)}
        if provider == "docker"
        else {}
    )


async def kill_container(job_id: str, *, from_inside: bool) -> None:
    """Kill the container of a job, or the resident in it."""
    container = (await docker("ps", "-q", "--filter", f"name=.sandbox.{job_id}.")).strip()
    if from_inside:
        pid = int(await docker("inspect", "-f", "{{.State.Pid}}", container))
        assert pid, "the container has ended already"
        await asyncio.to_thread(os.kill, pid, signal.SIGKILL)
    else:
        await docker("kill", container)


async def docker(*arguments: str) -> str:
    done = await asyncio.to_thread(
        subprocess.run, ["docker", *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout


def settings(provider: str, folder: Path, model: SteppingModel) -> dict[str, str]:
    return {
        "FANOUT_SANDBOX__PROVIDER": provider,
        "FANOUT_WORKER__LEASE_SECONDS": "6",
        "FANOUT_TEST_HOLDS": str(folder),
        **model.environment(),
    }


async def submitted(client: JobClient, place: Installation, model: SteppingModel) -> dict[str, str]:
    """The ids of all jobs by name, the worker's holds written down."""
    names = sorted({UNDISTURBED, *(name for name, _ in model.holds)})
    specs = [make_spec(f"Do {name}.", max_attempts=9) for name in names]
    ids = dict(zip(names, await client.submit_many([(spec, None) for spec in specs]), strict=True))
    for (name, step), moment in model.holds.items():
        if moment in ("ended", "between"):
            (place.folder / f"{ids[name]}.{step}").write_text(
                "before" if moment == "ended" else "after"
            )
    return ids


def held_worker(place: Installation) -> WorkerProcess:
    log = place.folder / f"worker-{len(list(place.folder.glob('worker-*.log')))}.log"
    worker = ForkedWorker(place.environment, log, JOBS + 1, module="tests.faults.held_worker")
    worker.start()
    place.workers.append(worker)
    return worker


async def until_registered(client: JobClient, worker: WorkerProcess) -> None:
    assert worker.process
    await eventually(
        client.workers,
        lambda seen: any(each.name.endswith(f"-{worker.process.pid}") for each in seen),
    )


async def until_held(
    client: JobClient, place: Installation, model: SteppingModel, ids: dict[str, str], holds: Holds
) -> None:
    """Until every job stands where it is to be killed."""
    for name, step in holds:
        await eventually(partial(is_held, client, place, model, ids[name], (name, step)))


async def is_held(
    client: JobClient,
    place: Installation,
    model: SteppingModel,
    job_id: str,
    where: tuple[str, int],
) -> bool:
    moment = model.holds[where]
    if moment == "request":
        return where in model.held
    if moment == "command":
        said = [
            event.data
            async for event in client.events(job_id, follow=False)
            if event.type is EventType.LOG
        ]
        return any(f"{BEGUN}: {where[1]}" in str(data["text"]).splitlines() for data in said)
    return (place.folder / f"{job_id}.{where[1]}.held").exists()


async def files(client: JobClient, job_id: str) -> dict[str, bytes]:
    async with client.changes(job_id) as bundle:
        return await asyncio.to_thread(
            lambda: {
                file.path: bundle.content(file.after) for file in bundle.changes.files if file.after
            }
        )


def check_told(model: SteppingModel, ids: dict[str, str]) -> None:
    """A command whose result was not written down is told as interrupted, and only such a one."""
    for name in ids:
        for step in range(1, STEPS + 1):
            was_cut = model.holds.get((name, step)) in ("command", "ended")
            said = model.told[name, step + 1]
            assert (CALL_INTERRUPTED in str(said)) == was_cut, (name, step, said)


async def check(
    client: JobClient, model: SteppingModel, ids: dict[str, str]
) -> dict[str, JobResult]:
    """Every job has succeeded, no request was completed twice, and the files are as undisturbed."""
    results = {name: await client.wait(job_id, 90) for name, job_id in ids.items()}
    assert [result.error for result in results.values() if not result.success] == []
    completed = model.completed.copy()
    for name, job_id in ids.items():
        # An attempt whose host opens no sandbox is given back and leaves nothing; the next one asks
        # for the first reply again.
        given_back = await begun(client, job_id) - results[name].attempts
        assert 1 <= completed.pop((name, 1)) <= 1 + given_back
    assert completed == {(name, step): 1 for name in ids for step in range(2, STEPS + 2)}
    expected = await files(client, ids[UNDISTURBED])
    assert expected["steps.txt"].decode().splitlines() == [f"step {n}" for n in range(1, STEPS + 1)]
    for name, job_id in ids.items():
        assert await files(client, job_id) == expected, name
        assert results[name].usage.model_calls == STEPS + 1, name
        assert results[name].usage.tool_calls == STEPS, name
    return results


async def begun(client: JobClient, job_id: str) -> int:
    """How often an attempt of a job began."""
    states = [
        event.data["state"]
        async for event in client.events(job_id, follow=False)
        if event.type is EventType.JOB_STATE
    ]
    return states.count(JobState.RUNNING)


@pytest.fixture
def provider() -> str:
    """Docker where it is: the test takes a minute, and the two differ in little here."""
    return "docker" if docker_answers() else "local"


@pytest.fixture
def kills(provider: str) -> list[Holds]:
    return rounds(provider)


@pytest.fixture
def model(kills: list[Holds], provider: str) -> Iterator[SteppingModel]:
    every = [container_kills(provider), *kills]
    with stepping_model(
        {where: moment for holds in every for where, moment in holds.items()}
    ) as serving:
        yield serving


@pytest.fixture
def place(install: Installer, model: SteppingModel, provider: str) -> Installation:
    return install(**settings(provider, install.folder, model))


async def test_a_worker_is_killed_at_every_step_and_nothing_is_done_twice(
    place: Installation, model: SteppingModel, kills: list[Holds], provider: str
) -> None:
    async with place.client() as client:
        worker = held_worker(place)
        await place.ready(client)
        ids = await submitted(client, place, model)
        containers = container_kills(provider)
        await until_held(client, place, model, ids, containers)
        for name, step in containers:
            await kill_container(ids[name], from_inside=step % 2 == 0)
        for holds in kills:
            await until_held(client, place, model, ids, holds)
            await client.wait(ids[UNDISTURBED], 60)
            successor = held_worker(place)  # all jobs have a worker: it takes none yet
            await until_registered(client, successor)
            worker.kill()
            place.workers.remove(worker)
            worker = successor

        results = await check(client, model, ids)

        check_told(model, ids)
        died = Counter(
            name for name, _ in (*containers, *(where for holds in kills for where in holds))
        )
        assert {name: result.attempts for name, result in results.items()} == {
            name: 1 + died[name] for name in ids
        }
