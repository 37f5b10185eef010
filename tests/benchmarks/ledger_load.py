"""What one Redis carries.

Heartbeats of a thousand running jobs, the submission of ten thousand, and the records of jobs that
wait and of those that have ended.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import psutil
from redis.asyncio import Redis

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.agent_definitions import load_agent_definitions
from fanout.orchestrator.configuration.settings import WorkerSettings, load_settings
from fanout.orchestrator.jobs.policy import AdmissionPolicy
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import SUBMIT_BATCH, Claim, Ledger
from fanout.workers.heartbeat import BEATS_PER_LEASE
from tests.benchmarks.measure import Benchmark, Samples, Section, milliseconds
from tests.builders import make_spec, make_worker
from tests.services import RedisProcess

JOBS, WORKERS = 1000, 20
MANY, TIMES = 10_000, 3
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
WAITING = Benchmark(
    name="redis-waiting",
    title="a waiting job in Redis, with all that belongs to it",
    unit="KiB",
    floor="its specification",
    target=4,
)
FINISHED = Benchmark(
    name="redis-finished",
    title="a finished job in Redis, with all that belongs to it",
    unit="KiB",
    floor="its specification and result",
    target=4,
)
SUBMIT = Benchmark(
    name="submit-10000",
    title=f"submit {MANY:,} jobs by one call of JobClient, and store them durably",
    unit="ms",
    floor=f"{MANY:,} specifications, each stored by a SET in pipelines of 100",
    target=MANY / 15,
)


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Submit many jobs; submit, claim, beat for and end a thousand at a time, and weigh them."""
    if SUBMIT.name in wanted:
        yield SUBMIT, await _submitting()
    if set(wanted) <= {SUBMIT.name}:
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        server = RedisProcess(Path(name))
        await asyncio.to_thread(server.start)
        try:
            async with connect(server.url) as redis:
                ledger = Ledger(redis, Keys())
                # The first jobs bring what Redis needs once, such as the scripts.
                claims = await _claimed(ledger, (await _submitted(ledger))[0])
                if BEATS.name in wanted:
                    beating = await _beating(ledger, redis, claims)
                    yield BEATS, Samples(beating, await _expiring(redis))
                    await redis.delete(*(f"floor:{number}" for number in range(JOBS)))
                await _finished(ledger, claims)
                waiting, finished = await _weights(ledger, redis)
                yield WAITING, waiting
                yield FINISHED, finished
        finally:
            await asyncio.to_thread(server.stop)


async def _weights(ledger: Ledger, redis: Redis) -> tuple[Samples, Samples]:
    """The KiB that each job adds to Redis while it waits, and when it has ended.

    The floors are the bytes of its specification, and of that and its result.
    """
    waiting, specs, finished, texts = [], [], [], []
    for _ in range(TIMES):
        empty = await _memory(redis)
        ids, sizes = await _submitted(ledger)
        waiting.append((await _memory(redis) - empty) / JOBS / KIB)
        specs.append(sum(sizes) / JOBS / KIB)
        sizes = await _finished(ledger, await _claimed(ledger, ids))
        finished.append((await _memory(redis) - empty) / JOBS / KIB)
        texts.append(sum(sizes) / JOBS / KIB)
    return Samples(waiting, specs), Samples(finished, texts)


async def _submitting() -> Samples:
    """Submit many jobs into an empty installation, and store as many texts, in turn."""
    ours, floor = [], []
    for _ in range(TIMES):
        with tempfile.TemporaryDirectory(prefix="bench-") as name:
            server = RedisProcess(Path(name))
            await asyncio.to_thread(server.start)
            try:
                settings = load_settings(redis_url=server.url, state_dir=Path(name) / "state")
                async with JobClient(server.url, settings, load_agent_definitions()) as client:
                    await client.submit(make_spec(DESCRIPTION))
                    specs = [make_spec(DESCRIPTION, root_id="tree") for _ in range(MANY)]
                    jobs = [(spec, None) for spec in specs]
                    ours.append(await milliseconds(client.submit_many(jobs)))
                async with connect(server.url) as redis:
                    floor.append(await milliseconds(_set(redis, specs)))
            finally:
                await asyncio.to_thread(server.stop)
    return Samples(ours, floor)


async def _set(redis: Redis, specs: list[JobSpec]) -> None:
    for first in range(0, len(specs), SUBMIT_BATCH):
        async with redis.pipeline(transaction=True) as pipe:
            for spec in specs[first : first + SUBMIT_BATCH]:
                pipe.set(f"floor:{spec.id}", spec.model_dump_json(exclude_defaults=True))
            await pipe.execute()


async def _submitted(ledger: Ledger) -> tuple[list[str], list[int]]:
    """Submit all jobs; their ids, and the bytes of each one's specification."""
    specs = [make_spec(DESCRIPTION, root_id=f"tree-{n % 10}") for n in range(JOBS)]
    sizes = [len(spec.model_dump_json(exclude_defaults=True)) for spec in specs]
    return await ledger.submit(specs), sizes


async def _claimed(ledger: Ledger, ids: list[str]) -> list[Claim]:
    worker = make_worker(concurrency=JOBS)
    await ledger.register(worker, 3600, AdmissionPolicy(tree_jobs=JOBS))
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


SECTION = Section(benchmarks=(SUBMIT, WAITING, BEATS, FINISHED), run=run)
