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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

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
LOOKS = 500
"""In one round, each of a worker."""
TOGETHER = 50
"""Requests that are on their way at once."""
MOST_MS = 10.0
"""The longest time for which one script may keep Redis from answering others."""
REGISTERED_SECONDS = 3600
SCRIPT_JOBS = 200

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


class _Meter:
    """The time of its processor that one Redis uses: what else the machine does is not counted."""

    def __init__(self, pid: int, ledger: Ledger) -> None:
        self._scheduled = Path(f"/proc/{pid}/schedstat")
        self._run = ledger._run
        ledger._run = self._measured_run
        self.longest: dict[str, float] = {}
        """Script -> the milliseconds of its longest call."""

    def used_ms(self) -> float:
        return int(self._scheduled.read_text().split()[0]) / 1e6

    async def _measured_run(self, name: str, *arguments: str | float) -> Any:
        before = self.used_ms()
        answer = await self._run(name, *arguments)
        self.longest[name] = max(self.longest.get(name, 0), self.used_ms() - before)
        return answer


async def _idle(place: _Place) -> float:
    """Microseconds of Redis for each of some workers in two seconds."""
    work = [
        partial(_look, place.ledger, place.workers[number % len(place.workers)])
        for number in range(LOOKS)
    ]
    before = place.meter.used_ms()
    await _together(work)
    return 1000 * (place.meter.used_ms() - before) / LOOKS


async def _scripts(
    redis: Redis, meter: _Meter, ledger: Ledger, workers: list[WorkerInfo], jobs: int, classes: int
) -> dict[str, float]:
    """The milliseconds of the longest call of each script, in a life of all kinds of work."""
    by_name = {worker.name: worker for worker in workers}
    for first in range(0, jobs, 1000):
        numbers = range(first, min(first + 1000, jobs))
        await ledger.submit(
            [make_spec(agent=f"a{n % classes}", root_id=f"r{n % 1000}") for n in numbers]
        )
    meter.longest.clear()
    sent = await ledger.dispatch(2 * SCRIPT_JOBS)
    claims = [await ledger.claim(job.spec.id, by_name[job.worker], 60) for job in sent]
    for number, claim in enumerate(claims):
        assert isinstance(claim, Claim), claim
        job_id = claim.spec.id
        if number % 2:
            assert await ledger.finish(job_id, claim.token, make_result(job_id), {})
        elif number % 4:
            assert await ledger.release(job_id, claim.token, "its worker stops")
    await ledger.dispatch(SCRIPT_JOBS)
    for key in ("leases", "workers", "dispatch:workers"):  # all are lost at once
        names = await redis.zrange(f"fanout:{key}", 0, -1)
        await redis.zadd(f"fanout:{key}", dict.fromkeys(names, 1), xx=True)
    await ledger.reap()
    return meter.longest


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Measure a small fleet and a large one in turn."""
    async with _place(FEW_WORKERS) as small, _place(WORKERS) as large:
        if IDLE.name in wanted:
            await small.ledger.submit([make_spec(agent="nobody-has")])
            specs = [make_spec(agent=f"nobody-has-{number}") for number in range(CLASSES)]
            await large.ledger.submit(specs)
            pairs = [(await _idle(large), await _idle(small)) for _ in range(ROUNDS + 1)][1:]
            yield IDLE, Samples([ours for ours, _ in pairs], [floor for _, floor in pairs])
        if SCRIPT.name in wanted:
            few = await _scripts(**vars(small), jobs=JOBS // 100, classes=1)
            many = await _scripts(**vars(large), jobs=JOBS, classes=CLASSES)
            yield SCRIPT, Samples([max(many.values())], [max(few.values())])


@dataclass
class _Place:
    redis: Redis
    meter: _Meter
    ledger: Ledger
    workers: list[WorkerInfo]


@asynccontextmanager
async def _place(count: int) -> AsyncIterator[_Place]:
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
                process = (await redis.info("server"))["process_id"]
                yield _Place(redis, _Meter(process, ledger), ledger, workers)
        finally:
            await asyncio.to_thread(server.stop)


SECTION = Section(benchmarks=(IDLE, SCRIPT), run=run)
