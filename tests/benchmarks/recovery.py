"""How soon jobs run again whose worker is killed, or told to stop: real workers, default lease."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path

import docker

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.settings import WorkerSettings
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from tests.benchmarks.measure import Benchmark, Samples, Section
from tests.integration.scripts import DONE, conversation, shell, write_script
from tests.services import Installation, installation

ROUNDS, JOBS = 3, 8
"""Of each kind: 24 samples, and each round meets the loops at another moment."""
AGAIN_SECONDS = 60.0

KILLED = Benchmark(
    name="killed",
    title=f"kill -9 of a worker to running again ({ROUNDS * JOBS} jobs)",
    unit="ms",
    floor="the lease, by default",
    target_p95=15_000,
)
STOPPED = Benchmark(
    name="stopped",
    title=f"SIGTERM of a worker to running again ({ROUNDS * JOBS} jobs)",
    unit="ms",
    floor="the worker's own exit",
    target_p95=3_000,
)


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """A worker with jobs goes while another stands by, which has the jobs of the next round."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        script = write_script(Path(name), conversation(".*", shell("sleep 300"), DONE))
        provider = "docker" if await asyncio.to_thread(_engine_answers) else "local"
        with installation(Path(name), script=script, FANOUT_SANDBOX__PROVIDER=provider) as place:
            place.start_worker(JOBS, forked=False)
            async with place.client() as client:
                if KILLED.name in wanted:
                    again, _ = await _rounds(place, client, signal.SIGKILL)
                    yield KILLED, Samples(again, [WorkerSettings().lease_seconds * 1000])
                if STOPPED.name in wanted:
                    yield STOPPED, Samples(*await _rounds(place, client, signal.SIGTERM))


async def _rounds(
    place: Installation, client: JobClient, number: signal.Signals
) -> tuple[list[float], list[float]]:
    """Milliseconds until each job ran again, and until each worker was gone."""
    again: list[float] = []
    gone: list[float] = []
    for _ in range(ROUNDS):
        await place.ready(client)
        ids = await client.submit_many([(JobSpec(description="Sleep."), None) for _ in range(JOBS)])
        for job_id in ids:
            await _until(client, job_id, lambda event: event.type is EventType.TOOL_CALL)
        await asyncio.to_thread(place.start_worker, JOBS, forked=False)
        await place.ready(client, 2)
        leaving = place.workers.pop(0)
        told_at = time.time()
        await asyncio.to_thread(leaving.send, number)
        gone.append((time.time() - told_at) * 1000)
        again += [await _ran_again(client, job_id, told_at) for job_id in ids]
        for job_id in ids:
            await client.cancel(job_id)
            await client.wait(job_id, AGAIN_SECONDS)
    return again, gone


async def _ran_again(client: JobClient, job_id: str, told_at: float) -> float:
    """By the machine's clock, which the journal's is, too."""
    event = await _until(
        client, job_id, lambda event: event.data.get("state") == "running" and event.at > told_at
    )
    return (event.at - told_at) * 1000


async def _until(
    client: JobClient, job_id: str, wanted: Callable[[JournalEvent], bool]
) -> JournalEvent:
    async with asyncio.timeout(AGAIN_SECONDS):
        async for event in client.events(job_id):
            if wanted(event):
                return event
    raise AssertionError("a job ended before it was at work again")


def _engine_answers() -> bool:
    try:
        with contextlib.closing(docker.from_env()) as engine:
            return bool(engine.ping())
    except (docker.errors.DockerException, OSError):
        return False


SECTION = Section(benchmarks=(KILLED, STOPPED), run=run)
