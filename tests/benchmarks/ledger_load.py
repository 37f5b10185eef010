"""What one Redis carries.

Heartbeats of a thousand running jobs, and the records of jobs that have ended.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import psutil
from redis.asyncio import Redis

from fanout.orchestrator.configuration.settings import WorkerSettings
from fanout.orchestrator.jobs.policy import AdmissionPolicy
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger
from fanout.workers.heartbeat import BEATS_PER_LEASE
from tests.benchmarks.measure import Benchmark, Samples, Section
from tests.builders import make_spec, make_worker
from tests.services import RedisProcess

JOBS, WORKERS = 1000, 20
LEASE_SECONDS = WorkerSettings().lease_seconds
WINDOWS, WINDOW_SECONDS = 4, 4.5
"""Each window holds two beats of every worker."""
KIB = 1024
DESCRIPTION = (
    "Move the tax calculation of every module below src/ to the new rates, and run its tests. " * 6
)
SUMMARY = "All call sites of the old table now take their rate from rates.py; the tests pass. " * 10

BEATS = Benchmark(
    name="redis-cpu",
    title=f"Redis with the heartbeats of {JOBS:,} running jobs",
    unit="%",
    floor="a bare PEXPIRE for each job",
    target=10,
)
RECORD = Benchmark(
    name="redis-memory",
    title="a finished job in Redis, without its journal",
    unit="KiB",
    floor="its specification and result",
    target=8,
)


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Claim a thousand jobs, beat for them as twenty workers, end them and weigh what is left."""
    del wanted
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        server = RedisProcess(Path(name))
        await asyncio.to_thread(server.start)
        try:
            async with connect(server.url) as redis:
                ledger = Ledger(redis, Keys())
                empty = await _memory(redis)
                claims = await _claimed(ledger)
                yield BEATS, Samples(await _beating(ledger, redis, claims), await _expiring(redis))
                await redis.delete(*(f"floor:{number}" for number in range(JOBS)))
                sizes = await _finished(ledger, claims)
                weight = (
                    (await _memory(redis) - empty - await _journals(redis, claims)) / JOBS / KIB
                )
                yield RECORD, Samples([weight], [sum(sizes) / JOBS / KIB])
        finally:
            await asyncio.to_thread(server.stop)


async def _claimed(ledger: Ledger) -> list[Claim]:
    worker = make_worker(concurrency=JOBS)
    await ledger.register(worker, 3600, AdmissionPolicy(tree_jobs=JOBS))
    ids = await ledger.submit(
        [make_spec(DESCRIPTION, root_id=f"tree-{n % 10}") for n in range(JOBS)]
    )
    while await ledger.dispatch(100):
        pass
    claims = [await ledger.claim(job_id, worker, 3600) for job_id in ids]
    assert not [claim for claim in claims if isinstance(claim, str)]
    return [claim for claim in claims if isinstance(claim, Claim)]


async def _beating(ledger: Ledger, redis: Redis, claims: list[Claim]) -> list[float]:
    """Redis's share of a core, in percent, while each worker renews its jobs four times a lease."""
    share = len(claims) // WORKERS
    batches = [claims[first : first + share] for first in range(0, len(claims), share)]

    async def beat(batch: list[Claim]) -> None:
        held = {claim.spec.id: claim.token for claim in batch}
        answers = await ledger.beat(held, 3600)
        assert set(answers.values()) == {"held"}

    return [
        await _window(redis, [(lambda b=batch: beat(b)) for batch in batches])
        for _ in range(WINDOWS)
    ]


async def _expiring(redis: Redis) -> list[float]:
    await redis.mset({f"floor:{number}": "1" for number in range(JOBS)})

    async def expire(first: int) -> None:
        async with redis.pipeline(transaction=False) as pipe:
            for number in range(first, first + JOBS // WORKERS):
                pipe.pexpire(f"floor:{number}", 3_600_000)
            await pipe.execute()

    starts = range(0, JOBS, JOBS // WORKERS)
    return [
        await _window(redis, [(lambda f=first: expire(f)) for first in starts])
        for _ in range(WINDOWS)
    ]


async def _window(redis: Redis, workers: list) -> float:
    """Every worker acts twice in the window, spread over it.

    The CPU that Redis took, in percent.
    """
    process = psutil.Process((await redis.info("server"))["process_id"])
    pause = LEASE_SECONDS / BEATS_PER_LEASE / len(workers)
    before, began = sum(process.cpu_times()[:2]), time.monotonic()
    while time.monotonic() - began < WINDOW_SECONDS:
        for act in workers:
            await act()
            await asyncio.sleep(pause)
    return 100 * (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)


async def _finished(ledger: Ledger, claims: list[Claim]) -> list[int]:
    """End all jobs; the bytes of each one's specification and result."""
    sizes = []
    for claim in claims:
        files = [
            {
                "path": f"src/module_{n}.py",
                "change": "modified",
                "lines_added": 3,
                "lines_removed": 2,
            }
            for n in range(5)
        ]
        result = JobResult.model_validate(
            {
                "job_id": claim.spec.id,
                "state": JobState.SUCCEEDED,
                "success": True,
                "summary": SUMMARY,
            }
            | {"files_modified": files, "changes": "0" * 64, "attempts": 1}
        )
        assert await ledger.finish(claim.spec.id, claim.token, result, {})
        sizes.append(
            len(claim.spec.model_dump_json(exclude_defaults=True)) + len(result.model_dump_json())
        )
    return sizes


async def _memory(redis: Redis) -> int:
    return int((await redis.info("memory"))["used_memory"])


async def _journals(redis: Redis, claims: list[Claim]) -> int:
    async with redis.pipeline(transaction=False) as pipe:
        for claim in claims:
            pipe.memory_usage(Keys().journal(claim.spec.id), samples=0)
        return sum(size or 0 for size in await pipe.execute())


SECTION = Section(benchmarks=(BEATS, RECORD), run=run)
