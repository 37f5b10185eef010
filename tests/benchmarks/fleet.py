"""What many workers and many classes of jobs cost Redis, as its own counters have it.

The workers are registrations of one process, through the real client; what each costs is what a
worker asks of Redis while it has nothing to do. The floor of each row is the same with few workers
and one class, so the ratio is the growth.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from redis.asyncio import Redis

from fanout.orchestrator.jobs.policy import AdmissionPolicy
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger
from fanout.orchestrator.jobs.worker_info import WorkerInfo
from tests.benchmarks.measure import Benchmark, Samples, Section
from tests.builders import make_result, make_spec, make_worker
from tests.services import RedisProcess

FEW_WORKERS, WORKERS, CLASSES, JOBS = 50, 5_000, 1_000, 100_000
ROUNDS = 5
TOGETHER = 50
"""Requests that are on their way at once."""
MOST_MS = 10.0
"""The longest time for which one script may keep Redis from answering others."""
REGISTERED_SECONDS = 3600
SCRIPT_JOBS = 200
LEASE_MS = 20

IDLE = Benchmark(
    name="fleet-idle",
    title=f"Redis, for an idle worker of {WORKERS:,}, with {CLASSES:,} classes waiting",
    unit="us",
    floor=f"of {FEW_WORKERS}, with one class",
    target_ratio=1.2,
)
SCRIPT = Benchmark(
    name="fleet-script",
    title=f"the longest script with {JOBS:,} jobs, {CLASSES:,} classes, {WORKERS:,} workers",
    unit="ms",
    floor="with one class and 50 workers",
    target=MOST_MS,
)


def _workers(count: int) -> list[WorkerInfo]:
    return [
        make_worker(f"w{number}", host=f"h{number % (count // 10)}", concurrency=2)
        for number in range(count)
    ]


async def _together(work: list[Callable[[], Awaitable[object]]]) -> None:
    for first in range(0, len(work), TOGETHER):
        await asyncio.gather(*(one() for one in work[first : first + TOGETHER]))


async def _look(ledger: Ledger, worker: WorkerInfo) -> None:
    """What an idle worker asks in two seconds."""
    await ledger.register(worker, REGISTERED_SECONDS, AdmissionPolicy())
    for _ in range(2):
        if await ledger.reap(1.0) is not None:
            await ledger.dispatch(64)


async def _processor_us(redis: Redis) -> float:
    used = await redis.info("cpu")
    return 1e6 * (float(used["used_cpu_user"]) + float(used["used_cpu_sys"]))


async def _idle(redis: Redis, ledger: Ledger, workers: list[WorkerInfo]) -> list[float]:
    """Microseconds of Redis for each worker in two seconds, in several rounds."""
    found, times = [], max(1, 1000 // len(workers))
    work = [lambda w=worker: _look(ledger, w) for worker in workers] * times
    for _ in range(ROUNDS):
        before = await _processor_us(redis)
        await _together(work)
        found.append((await _processor_us(redis) - before) / len(work))
    return found


async def _longest_ms(redis: Redis) -> float:
    """The time of the longest script since this was asked last."""
    entries = await redis.slowlog_get(128)
    await redis.slowlog_reset()
    scripts = [one for one in entries if one["command"].upper().startswith(b"EVALSHA")]
    return max((one["duration"] / 1000 for one in scripts), default=0.0)


async def _scripts(
    redis: Redis, ledger: Ledger, workers: list[WorkerInfo], jobs: int, classes: int
) -> list[float]:
    """The longest script of each kind of work."""
    by_name = {worker.name: worker for worker in workers}
    specs = [
        make_spec(agent=f"a{number % classes}", root_id=f"r{number % 1000}")
        for number in range(jobs)
    ]
    for first in range(0, jobs, 1000):
        await ledger.submit(specs[first : first + 1000])
    found = [await _longest_ms(redis)]
    sent = await ledger.dispatch(2 * SCRIPT_JOBS)
    found.append(await _longest_ms(redis))
    claims = [await ledger.claim(job.spec.id, by_name[job.worker], 60) for job in sent]
    found.append(await _longest_ms(redis))
    for claim in claims[:SCRIPT_JOBS]:
        assert isinstance(claim, Claim), claim
        assert await ledger.finish(claim.spec.id, claim.token, make_result(claim.spec.id), {})
    for claim in claims[SCRIPT_JOBS:]:
        assert isinstance(claim, Claim), claim
        assert await ledger.release(claim.spec.id, claim.token, "its worker stops")
    found.append(await _longest_ms(redis))
    while await ledger.dispatch(64):
        pass
    found.append(await _longest_ms(redis))
    for key in ("leases", "workers", "dispatch:workers"):  # all are lost at once
        names = await redis.zrange(f"fanout:{key}", 0, -1)
        await redis.zadd(f"fanout:{key}", dict.fromkeys(names, 1), xx=True)
    await redis.slowlog_reset()
    await ledger.reap()
    found.append(await _longest_ms(redis))
    return found


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Measure a small fleet and a large one in turn."""
    async with _place(FEW_WORKERS) as small, _place(WORKERS) as large:
        if IDLE.name in wanted:
            await small[1].submit([make_spec(agent="a0")])
            await large[1].submit([make_spec(agent=f"nobody-has-{n}") for n in range(CLASSES)])
            yield IDLE, Samples(await _idle(*large), await _idle(*small))
        if SCRIPT.name in wanted:
            few = await _scripts(*small, JOBS // 100, 1)
            yield SCRIPT, Samples([max(await _scripts(*large, JOBS, CLASSES))], [max(few)])


@asynccontextmanager
async def _place(count: int) -> AsyncIterator[tuple[Redis, Ledger, list[WorkerInfo]]]:
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        server = RedisProcess(Path(name))
        await asyncio.to_thread(server.start)
        try:
            async with connect(server.url) as redis:
                ledger, workers = Ledger(redis, Keys()), _workers(count)
                agents = tuple(f"a{number}" for number in range(CLASSES))
                workers = [make_worker(**{**vars(one), "agents": agents}) for one in workers]
                for worker in workers:
                    await ledger.register(worker, REGISTERED_SECONDS, AdmissionPolicy(tree_jobs=64))
                await redis.config_set("slowlog-log-slower-than", 100)
                await redis.slowlog_reset()
                yield redis, ledger, workers
        finally:
            await asyncio.to_thread(server.stop)


SECTION = Section(benchmarks=(IDLE, SCRIPT), run=run)
