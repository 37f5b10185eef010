"""A worker after a hundred jobs holds what it held after the first ones."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import redis
from fakeredis import FakeAsyncRedis

from fanout.orchestrator.client import JobClient
from tests.builders import make_spec
from tests.integration.jobs.bench import opened_bench
from tests.integration.scripts import DONE, conversation, write_script
from tests.services import Installation

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

WARM_UP = 30
JOBS = 100
IDLE_SECONDS = 5
SETTLE_SECONDS = 60


@dataclass(frozen=True)
class Held:
    threads: int
    files: int
    children: int
    channels: int
    connections: int
    memory_mb: int


def held(process: psutil.Process, place: Installation) -> Held:
    to_redis = [
        each
        for each in process.net_connections("tcp")
        if each.raddr and each.raddr.port == place.redis.port
    ]
    with redis.Redis.from_url(place.redis.url) as server:
        return Held(
            threads=process.num_threads(),
            files=process.num_fds(),
            children=len(process.children(recursive=True)),
            channels=len(server.pubsub_channels("fanout:bell:*")),
            connections=len(to_redis),
            memory_mb=process.memory_info().rss // 1024**2,
        )


async def settled(process: psutil.Process, place: Installation) -> Held:
    """What it holds once that changes no more, at the latest after some seconds."""
    deadline = time.monotonic() + SETTLE_SECONDS
    last = await asyncio.to_thread(held, process, place)
    while time.monotonic() < deadline:
        await asyncio.sleep(0.4)
        found = await asyncio.to_thread(held, process, place)
        if found == last and not found.channels:
            break
        last = found
    return last


async def run(client: JobClient, count: int) -> None:
    ids = await client.submit_many([(make_spec("quick"), None) for _ in range(count)])
    results = await asyncio.gather(*(client.wait(job_id) for job_id in ids))
    assert all(result.success for result in results)


@pytest.mark.slow
async def test_a_hundred_jobs_leave_no_threads_files_processes_or_channels(
    place: Installation,
) -> None:
    worker = place.start_worker(concurrency=8)
    async with place.client() as client:
        await place.ready(client)
        assert worker.process is not None
        process = psutil.Process(worker.process.pid)
        await run(client, WARM_UP)
        before = await settled(process, place)

        started_at = time.monotonic()
        await run(client, JOBS)
        seconds = time.monotonic() - started_at
        after = await settled(process, place)

        process.cpu_percent()
        await asyncio.sleep(IDLE_SECONDS)  # it is measured for as long
        idle_percent = process.cpu_percent()

    print(f"\n{JOBS} jobs in {seconds:.1f} s; idle {idle_percent} % of a core\n{before}\n{after}")
    assert after.threads <= before.threads + 8  # pools grow up to their bound on a busy machine
    # Connection pools still fill up to what runs at once; a leak would be hundreds.
    assert after.files <= before.files + 20
    assert (after.children, after.channels) == (before.children, 0)
    assert after.connections <= before.connections + 20
    assert after.memory_mb <= before.memory_mb + 30
    assert idle_percent < 10


@pytest.mark.slow
async def test_no_coroutine_of_a_job_outlives_it(tmp_path: Path) -> None:
    script = write_script(tmp_path, conversation("", DONE))
    async with (
        FakeAsyncRedis(decode_responses=True) as fake,
        opened_bench(fake, tmp_path, script) as bench,
    ):
        await asyncio.sleep(0.1)
        before = len(asyncio.all_tasks())
        for _ in range(5):
            ids = [await bench.submit(make_spec(str(number))) for number in range(6)]
            await asyncio.gather(*(bench.run(job_id) for job_id in ids))
        await asyncio.sleep(0.1)

        assert len(asyncio.all_tasks()) == before, asyncio.all_tasks()
        assert len(bench.heartbeats) == 0
        assert bench.left_behind() == []
