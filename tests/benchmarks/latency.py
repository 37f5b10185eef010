"""How soon an idle worker begins a job, with a real Redis that writes every change to disk."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from pathlib import Path

import redis
from celery import Celery

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.jobs.store.queue import broker_options
from tests.benchmarks.empty_task import QUEUE, STARTS, TASK
from tests.benchmarks.measure import Benchmark, Samples, Section, interleaved
from tests.integration.scripts import DONE, conversation, write_script
from tests.services import REPOSITORY, START_SECONDS, Installation, installation

JOBS = 60
ANSWER_SECONDS = 10
IDLE_AFTER_SECONDS = 0.05
"""After a job's end its worker tidies up; then it is idle."""
JOURNAL_TICK_MS = 1.0

LATENCY = Benchmark(
    name="latency",
    title="submit to running, idle worker",
    unit="ms",
    floor="empty Celery task, our pool",
    target=25,
)


async def run(_wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """One job after another, each when the last has ended, and an empty task between two."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        script = write_script(Path(name), conversation(".*", DONE))
        with installation(Path(name), script=script) as place, _empty_tasks(place) as send_empty:
            place.start_worker(concurrency=8, forked=False)
            async with place.client() as client:
                await place.ready(client)
                await asyncio.to_thread(send_empty, START_SECONDS)
                yield (
                    LATENCY,
                    await interleaved(
                        JOBS,
                        lambda: _submit_to_running(client),
                        lambda: asyncio.to_thread(send_empty, ANSWER_SECONDS),
                    ),
                )


async def _submit_to_running(client: JobClient) -> float:
    """Milliseconds by the machine's clock, which the journal's is, too.

    The journal's part is rounded up.
    """
    await asyncio.sleep(IDLE_AFTER_SECONDS)
    asked = time.time()
    job = await client.submit(JobSpec(description="Nothing to do."))
    assert (await client.wait(job, START_SECONDS)).success
    async for event in client.events(job, follow=False):
        if event.type is EventType.JOB_STATE and event.data["state"] == "running":
            return (event.at - asked) * 1000 + JOURNAL_TICK_MS
    raise AssertionError("a job ended without running")


@contextlib.contextmanager
def _empty_tasks(place: Installation) -> Iterator[Callable[[float], float]]:
    """A worker for empty tasks.

    The function sends one and gives the milliseconds until it began.
    """
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "tests.benchmarks.empty_task",
        "-b",
        place.redis.url,
    ]
    options = ["--queues", QUEUE, "--hostname", "bench@%h", "--without-gossip", "--without-mingle"]
    quiet = subprocess.DEVNULL
    worker = subprocess.Popen(
        [*command, "worker", *options],
        cwd=REPOSITORY,
        env=place.environment,
        stdout=quiet,
        stderr=quiet,
    )
    sender = Celery("bench", broker=place.redis.url, set_as_current=False)
    sender.conf.update(broker_transport_options=broker_options("bench"), task_ignore_result=True)
    try:
        with redis.Redis.from_url(place.redis.url, socket_timeout=None) as client:

            def send(timeout_seconds: float) -> float:
                sent = time.time()
                sender.send_task(TASK, args=[place.redis.url], queue=QUEUE)
                answer = client.blpop([STARTS], timeout=timeout_seconds)
                assert answer, "the worker for empty tasks does not answer"
                return (float(answer[1]) - sent) * 1000

            yield send
    finally:
        sender.close()
        worker.terminate()
        worker.wait(timeout=START_SECONDS)


SECTION = Section(benchmarks=(LATENCY,), run=run)
