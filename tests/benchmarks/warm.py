"""Warm sandboxes: how soon a job has one, and how many whole jobs a second there are with them."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path
from typing import Any

import docker
from celery import Celery

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.spec import JobSpec, new_job_id
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.jobs.store.queue import broker_settings
from fanout.workers.sandbox.docker.naming import INSTALLATION, WARM
from fanout.workers.sandbox.docker.provider import DEFAULT_IMAGE
from fanout.workers.sandbox.protocol import SandboxSpec
from fanout.workers.supervisor import number_of_processes
from tests.benchmarks import jobs
from tests.benchmarks.engine import LIMITS, Bench, bench
from tests.benchmarks.measure import Benchmark, Samples, Section, interleaved, milliseconds
from tests.benchmarks.plain_container import sdk
from tests.integration.scripts import DONE, conversation, shell, write_script
from tests.services import Installation, installation

OPENINGS = 10
JOBS = 16
MANY_ROUNDS = 3
"""Each makes a worker and fifty sandboxes."""
ONE_COMMAND = (shell("true"), DONE)
COMMANDS = jobs.turns_of(shell("echo x >> x.txt"))
WAIT_SECONDS = 60.0

OPENING = Benchmark(
    name="sandbox-warm",
    title="a warm sandbox is adopted by a job",
    unit="ms",
    floor="ours, started cold",
    target=12,
)
WARM_JOBS = Benchmark(
    name="jobs-warm",
    title=f"{JOBS} whole jobs with a command each, sandboxes warm",
    unit="a second",
    target_least=20,
)
COLD_JOBS = Benchmark(
    name="jobs-cold",
    title=f"{JOBS} whole jobs with a command each, none warm",
    unit="a second",
    target_least=8,
)


MANY_WARM = jobs.many("jobs-50x5-docker-warm", "a command each turn, in Docker, all warm", 1.3)


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Openings in one provider; jobs in a worker of their own each time."""
    if OPENING.name in wanted:
        async with bench() as place:
            yield OPENING, await interleaved(OPENINGS, lambda: _warm(place), lambda: _cold(place))
    for benchmark, warm in ((WARM_JOBS, JOBS), (COLD_JOBS, 0)):
        if benchmark.name in wanted:
            yield benchmark, Samples([JOBS / await _seconds(JOBS, warm, ONE_COMMAND)])
    if MANY_WARM.name in wanted:
        yield MANY_WARM, await interleaved(MANY_ROUNDS, _many_at_once, _one_alone)


async def _warm(place: Bench) -> float:
    spec = _spec()
    with place.provider.expect(spec):
        async with asyncio.timeout(WAIT_SECONDS):
            while not place.provider._pool.ready:  # noqa: ASYNC110 - nothing else waits for it
                await asyncio.sleep(0.02)
        return await _opened(place, spec)


async def _cold(place: Bench) -> float:
    return await _opened(place, _spec())


async def _opened(place: Bench, spec: SandboxSpec) -> float:
    async with contextlib.AsyncExitStack() as stack:
        took = await milliseconds(stack.enter_async_context(place.provider.open(spec)))
    await place.provider.discard(spec.job_id)
    return took


def _spec() -> SandboxSpec:
    return SandboxSpec(job_id=new_job_id(), attempt=1, image=DEFAULT_IMAGE, limits=LIMITS)


async def _many_at_once() -> float:
    return 1000 * await _seconds(jobs.JOBS, jobs.JOBS, COMMANDS, processes=0)


async def _one_alone() -> float:
    return 1000 * await _seconds(1, 1, COMMANDS)


async def _seconds(
    number: int, warm: int, turns: Sequence[dict[str, Any]], *, processes: int = 1
) -> float:
    """Submit jobs to a worker that takes none for the moment; from the first one's start.

    Args:
        number: How many jobs.
        warm: How many sandboxes are started ahead.
        turns: The replies of the model in each job.
        processes: Of the worker; 0: as many as it takes by itself.
    """
    environment = {
        "FANOUT_SANDBOX__PROVIDER": "docker",
        "FANOUT_SANDBOX__WARM": str(warm),
        "FANOUT_LIMITS__TREE_JOBS": str(number),
        "FANOUT_WORKER__PROCESSES": str(processes),
    }
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        script = write_script(Path(name), conversation(".*", *turns))
        with installation(Path(name), script=script, **environment) as place:
            place.start_worker(concurrency=number, forked=False)
            async with place.client() as client:
                await place.ready(client, workers=number_of_processes(processes, number))
                await _last(place, client, 1, 0)  # a warm-up: the steward, and what is imported
                return await _last(place, client, number, warm)


async def _last(place: Installation, client: JobClient, number: int, warm: int) -> float:
    """Seconds from the start of the first job to the end of the last."""
    await _control(place, "cancel_consumer")
    async with asyncio.timeout(WAIT_SECONDS):
        while not all(worker.draining for worker in await client.workers()):  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.1)
    specs = [JobSpec(description="Run a command.") for _ in range(number)]
    ids = await client.submit_many([(spec, None) for spec in specs])
    await _until_warm(place, warm)
    await _control(place, "add_consumer")
    results = [await client.wait(job, WAIT_SECONDS) for job in ids]
    assert all(result.success for result in results), results
    times = [time for job in ids for time in await _states(client, job)]
    return max(times) - min(times)


async def _states(client: JobClient, job: str) -> list[float]:
    """The times at which a job ran and ended."""
    return [
        event.at
        async for event in client.events(job, follow=False)
        if event.type is EventType.JOB_STATE and event.data["state"] in {"running", "succeeded"}
    ]


async def _control(place: Installation, command: str) -> None:
    """Have all processes of the worker take jobs, or none.

    Sent from here: `celery control` is a process that takes a quarter of a second of a processor
    beside the jobs that it lets begin.
    """
    settings = place.settings
    with Celery("benchmark", set_as_current=False) as app:
        app.conf.update(**broker_settings(settings.redis_url or "", settings.redis_prefix))
        arguments = {"queue": settings.worker.queue}
        await asyncio.to_thread(app.control.broadcast, command, arguments=arguments)


async def _until_warm(place: Installation, number: int) -> None:
    with sdk() as api:
        async with asyncio.timeout(WAIT_SECONDS):
            while await asyncio.to_thread(_warm_containers, api, place.identity) < number:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.1)


def _warm_containers(api: docker.APIClient, identity: str) -> int:
    filters = {"label": [f"{INSTALLATION}={identity}", WARM], "status": ["running"]}
    return len(api.containers(filters=filters))


SECTION = Section(benchmarks=(OPENING, WARM_JOBS, COLD_JOBS, MANY_WARM), run=run)
