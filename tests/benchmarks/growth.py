"""What one operation costs beside 1,000, and beside 100,000, other jobs of the same tree.

The floor of each row is the same operation in the small tree, so the ratio is the growth. Seconds
are those of both processors, Redis's and this process's: what else the machine does is not counted.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from redis.asyncio import Redis

from fanout.orchestrator.cli.terminal.session import resolve_job
from fanout.orchestrator.client.job_counts import JobCounts
from fanout.orchestrator.client.job_reader import JobReader
from fanout.orchestrator.jobs.policy import AdmissionPolicy
from fanout.orchestrator.jobs.state import LIVE_STATES
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.journal import Journal
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger
from tests.benchmarks import listing
from tests.benchmarks.measure import Benchmark, Samples, Section
from tests.builders import make_result, make_spec, make_worker
from tests.services import RedisProcess

SMALL, LARGE = 1_000, 100_000
"""Jobs of the trees."""
ROUNDS, BATCH = 15, 200
"""How often each operation is done in turn in both trees, and on how many jobs at once."""
SHORT_IDS = 20
"""Resolved in one round: one takes too little time to compare."""
TREE = "tree"
FLAT = 1.2
"""The most that an operation in the large tree may cost, as a multiple of that in the small one."""
BEHIND_THE_END = "99999999999999-0"
"""The id of an event that no journal has yet."""
WORKER = make_worker(concurrency=10 * BATCH)


def _row(name: str, title: str) -> Benchmark:
    return Benchmark(
        name=f"grow-{name}",
        title=f"{title}, in a tree of {LARGE:,} jobs",
        unit="ms",
        floor=f"in a tree of {SMALL:,}",
        target_ratio=FLAT,
    )


OPERATIONS = {
    "submit": _row("submit", f"submit {BATCH} jobs"),
    "dispatch": _row("dispatch", f"dispatch {BATCH} jobs"),
    "claim": _row("claim", f"claim {BATCH} jobs"),
    "beat": _row("beat", f"renew {BATCH} leases"),
    "wait": _row("wait", f"look whether {BATCH} jobs have ended"),
    "finish": _row("finish", f"commit {BATCH} results"),
    "resolve": _row("resolve", f"find {SHORT_IDS} jobs by the ends of their ids"),
    "ps": _row("ps", "list the 200 newest live jobs"),
    "tree": _row("tree", "list the first 200 jobs of the tree"),
    "scrape": _row("scrape", "count the jobs for one scrape of /metrics"),
}
LISTINGS = 2
LISTS = {
    "ps": f"ps --all --json --limit {LARGE}",
    "ps-table": f"ps --all --limit {LARGE}",
    "cost": "cost --json",
    "history": "history --json",
}
"""Commands that list or sum all jobs, which hold a part of them at a time."""
FIRST_BYTES = {
    name: Benchmark(
        name=f"grow-{name}-first-byte",
        title=f"processor time until the first byte of `fanout {LISTS[name]}`, of {LARGE:,} jobs",
        unit="ms",
        floor=f"of {SMALL:,}",
        target_ratio=FLAT,
    )
    for name in ("ps", "ps-table")
}
PEAKS = {
    name: Benchmark(
        name=f"grow-{name}-memory",
        title=f"peak memory of `fanout {command}`, {LARGE:,} jobs",
        unit="MiB",
        floor=f"{SMALL:,} jobs",
        target_ratio=FLAT,
    )
    for name, command in LISTS.items()
}


@dataclass
class _Place:
    """An installation with one tree."""

    url: str
    redis: Redis
    ledger: Ledger
    journal: Journal
    reader: JobReader
    server: psutil.Process

    async def cost(self, work: Callable[[], Awaitable[object]]) -> float:
        """The milliseconds of both processors that the work takes."""
        before = self._used()
        await work()
        return (self._used() - before) * 1000

    def _used(self) -> float:
        # In nanoseconds, where `cpu_times` has hundredths of a second.
        scheduled = Path(f"/proc/{self.server.pid}/schedstat").read_text().split()
        return time.process_time() + int(scheduled[0]) / 1e9

    def listing(self, name: str) -> tuple[float, float]:
        """Run one of `LISTS`; the processor's milliseconds until its first byte, and its MiB."""
        command = [sys.executable, listing.__file__, sys.executable, "-m", "fanout"]
        done = subprocess.run(
            [*command, *LISTS[name].split()],
            stdout=subprocess.PIPE,
            env=os.environ | {"FANOUT_REDIS_URL": self.url},
            check=True,
        )
        took = json.loads(done.stdout)
        return took["first_byte_ms"], took["peak_mib"]

    async def round(self) -> dict[str, float]:
        """Do every operation once; what each one took."""
        once = _Round(self)
        return {name: await self.cost(getattr(once, name)) for name in OPERATIONS}


class _Round:
    """Each operation once, in the order of `OPERATIONS`: some need what others leave."""

    def __init__(self, place: _Place) -> None:
        self._place = place
        self._specs = [make_spec("count the lines", root_id=TREE) for _ in range(BATCH)]
        self._ids: list[str] = []
        self._claims: list[Claim] = []

    async def submit(self) -> None:
        await self._place.ledger.submit(self._specs)

    async def dispatch(self) -> None:
        self._ids = [job.spec.id for job in await self._place.ledger.dispatch(BATCH)]

    async def claim(self) -> None:
        for job_id in self._ids:
            claimed = await self._place.ledger.claim(job_id, WORKER, 3600)
            assert isinstance(claimed, Claim), claimed
            self._claims.append(claimed)

    async def beat(self) -> None:
        held = {one.spec.id: one.token for one in self._claims}
        assert set((await self._place.ledger.beat(held, 3600)).values()) == {"held"}

    async def wait(self) -> None:
        for job_id in self._ids:
            assert not await self._place.journal.read(job_id, BEHIND_THE_END)

    async def finish(self) -> None:
        for one in self._claims:
            result = make_result(one.spec.id, summary="It has 12 lines.")
            assert await self._place.ledger.finish(one.spec.id, one.token, result, {})

    async def resolve(self) -> None:
        for job_id in self._ids[:SHORT_IDS]:
            assert await resolve_job(self._place.reader, job_id[4:]) == job_id

    async def ps(self) -> None:
        assert len(await self._place.reader.list(states=LIVE_STATES, limit=BATCH)) == BATCH

    async def tree(self) -> None:
        assert len(await self._place.reader.tree(TREE, BATCH)) == BATCH

    async def scrape(self) -> None:
        assert sum((await JobCounts(self._place.reader).now()).states.values()) >= SMALL


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Fill two installations, and do each operation in both in turn."""
    async with _place(SMALL) as small, _place(LARGE) as large:
        for name in LISTS:
            rows = {FIRST_BYTES.get(name): 0, PEAKS[name]: 1}
            asked = {row: part for row, part in rows.items() if row and row.name in wanted}
            if asked:
                many, few = [
                    [await asyncio.to_thread(place.listing, name) for _ in range(LISTINGS)]
                    for place in (large, small)
                ]
                for row, part in asked.items():
                    yield row, Samples([one[part] for one in many], [one[part] for one in few])
        if not {row.name for row in OPERATIONS.values()} & set(wanted):
            return
        gc.freeze()
        await small.round()
        await large.round()
        ours, floors = [], []
        for _ in range(ROUNDS):
            floors.append(await small.round())
            ours.append(await large.round())
        gc.unfreeze()
    for name, benchmark in OPERATIONS.items():
        if benchmark.name in wanted:
            yield benchmark, Samples([one[name] for one in ours], [one[name] for one in floors])


@asynccontextmanager
async def _place(jobs: int) -> AsyncIterator[_Place]:
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        server = RedisProcess(Path(name))
        await asyncio.to_thread(server.start)
        try:
            async with connect(server.url) as redis, JobReader(server.url) as reader:
                ledger, journal = Ledger(redis, Keys()), Journal(redis, Keys())
                await ledger.register(WORKER, 3600, AdmissionPolicy(tree_jobs=10 * BATCH))
                for _ in range(0, jobs, SMALL):
                    await ledger.submit([make_spec(root_id=TREE) for _ in range(SMALL)])
                process = psutil.Process((await redis.info("server"))["process_id"])
                yield _Place(server.url, redis, ledger, journal, reader, process)
                await journal.close()
        finally:
            await asyncio.to_thread(server.stop)


SECTION = Section(
    benchmarks=(*OPERATIONS.values(), *FIRST_BYTES.values(), *PEAKS.values()), run=run
)
