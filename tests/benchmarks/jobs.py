"""Jobs on a real worker: how soon an idle one begins, and what a process with two hundred agents weighs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Iterator
from pathlib import Path
from typing import Any

import psutil
import redis
from celery import Celery

from orchestrator.client import JobClient
from orchestrator.jobs.journal import EventType
from orchestrator.jobs.queue import broker_options
from orchestrator.jobs.spec import JobSpec
from tests.benchmarks.empty_task import QUEUE, STARTS, TASK
from tests.benchmarks.measure import Benchmark, Samples, Section, interleaved
from tests.integration.scripts import DONE, call, calls, conversation, write_script
from tests.services import REPOSITORY, START_SECONDS, Installation, installation

JOBS = 50
AGENTS = 200
ALL_AT_WORK_SECONDS = 120.0
WEIGHINGS, WEIGHING_PAUSE_SECONDS = 20, 0.2
JOURNAL_TICK_MS = 1.0
IDLE_AFTER_SECONDS = 0.05
"""After a job's end its worker tidies up; then it is idle."""
MIB = 1024**2

START = Benchmark(
    name="latency",
    title="submit to running, idle worker",
    unit="ms",
    floor="empty Celery task, our pool",
    target=25,
)
RSS = Benchmark(
    name="memory",
    title=f"RSS of a worker, {AGENTS} agents at once",
    unit="MiB",
    floor="the same worker, idle",
    target=250,
)
PSS = Benchmark(
    name="memory-pss",
    title=f"PSS of a worker, {AGENTS} agents at once",
    unit="MiB",
    floor="the same worker, idle",
)
USS = Benchmark(
    name="memory-uss",
    title=f"USS of a worker, {AGENTS} agents at once",
    unit="MiB",
    floor="the same worker, idle",
)
WEIGHTS = {RSS: "rss", PSS: "pss", USS: "uss"}


async def run_latency(_wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """One job after another, each when the last has ended, and an empty task between two."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        script = write_script(Path(name), conversation(".*", DONE))
        with installation(Path(name), script=script) as place, _empty_tasks(place) as send_empty:
            place.start_worker(concurrency=8)
            async with place.client() as client:
                await place.ready(client)
                floor = await asyncio.to_thread(send_empty, START_SECONDS)
                assert floor > 0
                yield (
                    START,
                    await interleaved(
                        JOBS, lambda: _submit_to_running(client), lambda: asyncio.to_thread(send_empty)
                    ),
                )


async def _submit_to_running(client: JobClient) -> float:
    """Milliseconds on the machine's clock, which is the Redis server's, too; its part is rounded up."""
    await asyncio.sleep(IDLE_AFTER_SECONDS)
    asked = time.time()
    job = await client.submit(JobSpec(description="Nothing to do."))
    assert (await client.wait(job, START_SECONDS)).success
    async for event in client.events(job, follow=False):
        if event.type is EventType.JOB_STATE and event.data["state"] == "running":
            return (event.at - asked) * 1000 + JOURNAL_TICK_MS
    raise AssertionError("a job ended without running")


@contextlib.contextmanager
def _empty_tasks(place: Installation) -> Iterator[Any]:
    """A worker for empty tasks; the function sends one and says how many milliseconds later it began."""
    options = ["--queues", QUEUE, "--hostname", "bench@%h", "--without-gossip", "--without-mingle"]
    command = [sys.executable, "-m", "celery", "-A", "tests.benchmarks.empty_task", "-b", place.redis.url]
    sender = Celery("bench", broker=place.redis.url, set_as_current=False)
    sender.conf.update(broker_transport_options=broker_options("bench"), task_ignore_result=True)
    worker = subprocess.Popen(
        [*command, "worker", *options],
        cwd=REPOSITORY,
        env=place.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with redis.Redis.from_url(place.redis.url, socket_timeout=None) as client:

            def send(timeout_seconds: float = 10) -> float:
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


async def run_memory(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Weigh a worker before its first job, and when every agent has used a tool and awaits its model."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        with installation(Path(name), script=_waiting_script(Path(name))) as place:
            worker = place.start_worker(concurrency=AGENTS)
            assert worker.process is not None
            process = psutil.Process(worker.process.pid)
            async with place.client() as client:
                await place.ready(client)
                idle = await _weigh(process)
                specs = [JobSpec(description=f"Wait, number {number}.") for number in range(AGENTS)]
                ids = await client.submit_many([(spec, None) for spec in specs])
                await _all_at_work(client, ids)
                busy = await _weigh(process)
                for job in ids:
                    await client.cancel(job)
            for benchmark, weight in WEIGHTS.items():
                if benchmark.name in wanted:
                    yield (
                        benchmark,
                        Samples([sizes[weight] for sizes in busy], [sizes[weight] for sizes in idle]),
                    )


def _waiting_script(folder: Path) -> Path:
    """A file is written, so that the agent has had its tools and sandbox; then the model takes its time."""
    write = calls(call("write_file", file_path="/workspace/note.txt", content="Here I was.\n"))
    return write_script(folder, conversation(".*", write, {**DONE, "delay_seconds": 600}))


async def _all_at_work(client: JobClient, ids: Collection[str]) -> None:
    """Wait until each job's tool has answered and its model is asked again."""
    waiting = set(ids)
    async with asyncio.timeout(ALL_AT_WORK_SECONDS):
        while waiting:
            await asyncio.sleep(0.5)
            for job in list(waiting):
                kinds = [event.type async for event in client.events(job, follow=False)]
                assert EventType.JOB_STATE not in kinds[2:], json.dumps(kinds)
                if EventType.TOOL_RESULT in kinds and kinds[-1] is EventType.MODEL_REQUEST:
                    waiting.discard(job)


async def _weigh(process: psutil.Process) -> list[dict[str, float]]:
    weighed = []
    for _ in range(WEIGHINGS):
        await asyncio.sleep(WEIGHING_PAUSE_SECONDS)
        sizes = await asyncio.to_thread(process.memory_full_info)
        weighed.append({name: getattr(sizes, name) / MIB for name in WEIGHTS.values()})
    return weighed


LATENCY_SECTION = Section(benchmarks=(START,), run=run_latency)
MEMORY_SECTION = Section(benchmarks=tuple(WEIGHTS), run=run_memory)
