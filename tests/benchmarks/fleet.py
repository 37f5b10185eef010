"""What many workers, classes and jobs cost Redis: the time of its processor, and its commands.

The workers are registrations of one process, through the real client; what each costs is what a
worker asks of Redis while it has nothing to do. The floor is the same with few workers and one
class, so the ratio is the growth. Of each script of the ledger, the longest call is measured where
everything is large.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
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
LOOKS = 200
"""In one round, each of a worker."""
MOST_MS = 10.0
"""The longest time for which one script may keep Redis from answering others."""
REGISTERED_SECONDS = 3600
SCRIPT_JOBS = 200
TREE = 10_000
"""Jobs of each of two trees that are cancelled and evicted."""
MAX_CHILDREN = 1_000
"""Of a job: a setting allows no more (`TreeBounds`)."""
SUBMITTED = 1_000
"""Jobs of one submission."""

IDLE = Benchmark(
    name="fleet-idle",
    title=f"Redis, for an idle worker of {WORKERS:,}, with {CLASSES:,} classes waiting",
    unit="us",
    floor=f"of {FEW_WORKERS}, with one class",
    target_ratio=1.2,
)
IDLE_COMMANDS = Benchmark(
    name="fleet-idle-commands",
    title=f"commands in Redis for an idle worker of {WORKERS:,}, with {CLASSES:,} classes waiting",
    unit="times",
    floor=f"of {FEW_WORKERS}, with one class",
    target_ratio=1.02,
)
SCRIPTS = {
    "submit": f"submit: {SUBMITTED:,} jobs, each a tree",
    "dispatch": f"dispatch: {2 * SCRIPT_JOBS} jobs",
    "claim": "claim",
    "beat": f"beat: {2 * SCRIPT_JOBS} jobs of one worker",
    "finish": "finish",
    "release": "release",
    "register": "register, renew and unregister a worker, and a new policy",
    "reap": f"reap: all leases and {WORKERS:,} workers are lost at once",
    "upcoming": "upcoming: the next 64 jobs",
    "cancel": f"cancel: a tree of {TREE:,} jobs",
    "evict": f"evict: a tree of {TREE:,} jobs",
    "forget": "forget: all ended jobs",
    "shorten": "shorten: the journals of ended jobs",
    "recount": "recount: all jobs",
    "counts": "state_counts: counters, and the recount of some jobs",
}
"""The scripts that are measured: what they do."""


def _row(name: str, title: str) -> Benchmark:
    return Benchmark(
        name=f"fleet-{name}",
        title=f"longest call of {title}; {JOBS:,} jobs, {CLASSES:,} classes, {WORKERS:,} workers",
        unit="ms",
        target=MOST_MS,
    )


SCRIPT_ROWS = {name: _row(name, title) for name, title in SCRIPTS.items()}


def _workers(count: int) -> list[WorkerInfo]:
    return [
        make_worker(f"w{number}", host=f"h{number % (count // 10)}", concurrency=2)
        for number in range(count)
    ]


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
        return await self.measure(name, self._run(name, *arguments))

    async def measure(self, name: str, work: Awaitable[Any]) -> Any:
        """Do the work, and note what it takes if that is the most so far."""
        before = self.used_ms()
        answer = await work
        self.longest[name] = max(self.longest.get(name, 0), self.used_ms() - before)
        return answer


async def _idle(*places: _Place) -> list[float]:
    """Microseconds of each Redis for a worker in two seconds.

    The places take turns at every look: so both find the machine, and its caches, as the other one
    leaves them, whatever else runs there.
    """
    before = [place.meter.used_ms() for place in places]
    for number in range(LOOKS):
        for place in places:
            await _look(place.ledger, place.workers[number % len(place.workers)])
    return [
        1000 * (place.meter.used_ms() - used) / LOOKS
        for place, used in zip(places, before, strict=True)
    ]


async def _commands(place: _Place) -> float:
    """How many commands Redis carries out for a worker in two seconds."""
    await place.redis.config_resetstat()
    for number in range(LOOKS):
        await _look(place.ledger, place.workers[number % len(place.workers)])
    stats = await place.redis.info("commandstats")
    return sum(kind["calls"] for kind in stats.values()) / LOOKS


async def _run_scripts(place: _Place) -> dict[str, float]:
    """The milliseconds of the longest call of each script, in a life of all kinds of work."""
    redis, ledger, meter = place.redis, place.ledger, place.meter
    by_name = {worker.name: worker for worker in place.workers}
    for first in range(0, JOBS - 2 * TREE, 1000):
        numbers = range(first, first + 1000)
        await ledger.submit(
            [make_spec(agent=f"a{n % CLASSES}", root_id=f"r{n % 1000}") for n in numbers]
        )
    roots = [await _submit_tree(ledger) for _ in range(2)]
    meter.longest.clear()
    await ledger.submit([make_spec(agent=f"a{n}", owner="ann") for n in range(SUBMITTED)])
    await ledger.upcoming(64)
    sent = await ledger.dispatch(2 * SCRIPT_JOBS)
    claims = [await ledger.claim(job.spec.id, by_name[job.worker], 60) for job in sent]
    held = {claim.spec.id: claim.token for claim in claims if isinstance(claim, Claim)}
    await ledger.beat(held, 60)
    for number, (job_id, token) in enumerate(held.items()):
        if number % 2:
            assert await ledger.finish(job_id, token, make_result(job_id), {})
        elif number % 4:
            assert await ledger.release(job_id, token, "its worker stops")
    await ledger.dispatch(SCRIPT_JOBS)
    worker = make_worker("other", agents=tuple(f"b{n}" for n in range(CLASSES)))
    await ledger.register(worker, REGISTERED_SECONDS, AdmissionPolicy(tree_jobs=65), 1)
    await ledger.register(worker, REGISTERED_SECONDS, AdmissionPolicy(tree_jobs=65), 1)
    await ledger.register(worker, 0)
    for root in roots:
        await ledger.cancel(root)
    for key in ("leases", "workers", "dispatch:workers"):  # all are lost at once
        names = await redis.zrange(f"fanout:{key}", 0, -1)
        await redis.zadd(f"fanout:{key}", dict.fromkeys(names, 1), xx=True)
    await ledger.reap()
    await ledger.state_counts(begin_again=True)
    await meter.measure("counts", ledger.state_counts())
    await ledger.recount()
    assert await ledger.evict("all", jobs=TREE, bytes_=0, min_kept_seconds=-60) >= TREE
    while not (await ledger.shorten_journals(-60))[1]:
        pass
    assert await ledger.forget(-60) > 0
    return meter.longest


async def _submit_tree(ledger: Ledger) -> str:
    """Submit a tree whose jobs have as many children as they may have, and return its root."""
    root = make_spec(agent="nobody-has")
    below = {"agent": "nobody-has", "root_id": root.id}
    parents = [make_spec(**below, parent_id=root.id, depth=1) for _ in range(TREE // MAX_CHILDREN)]
    await ledger.submit([root, *parents])
    for parent in parents:
        await ledger.submit(
            [make_spec(**below, parent_id=parent.id, depth=2) for _ in range(MAX_CHILDREN)]
        )
    return root.id


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Measure a small fleet and a large one in turn, and each script in the large one."""
    if {row.name for row in SCRIPT_ROWS.values()} & set(wanted):
        async with _place(WORKERS) as large:
            longest = await _run_scripts(large)
        for name, row in SCRIPT_ROWS.items():
            yield row, Samples([longest[name]])
    if {IDLE.name, IDLE_COMMANDS.name} & set(wanted):
        async with _place(FEW_WORKERS) as small, _place(WORKERS) as large:
            await small.ledger.submit([make_spec(agent="nobody-has")])
            specs = [make_spec(agent=f"nobody-has-{number}") for number in range(CLASSES)]
            await large.ledger.submit(specs)
            rounds = [await _idle(large, small) for _ in range(ROUNDS + 1)][1:]
            yield IDLE, Samples([ours for ours, _ in rounds], [floor for _, floor in rounds])
            yield IDLE_COMMANDS, Samples([await _commands(large)], [await _commands(small)])


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
                await redis.config_set("auto-aof-rewrite-percentage", 0)  # forks meanwhile
                for script in ledger._scripts.registered.values():
                    await redis.script_load(script.script)
                process = (await redis.info("server"))["process_id"]
                yield _Place(redis, _Meter(process, ledger), ledger, workers)
        finally:
            await asyncio.to_thread(server.stop)


SECTION = Section(benchmarks=(*SCRIPT_ROWS.values(), IDLE, IDLE_COMMANDS), run=run)
