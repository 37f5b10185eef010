"""What one worker process weighs when two hundred agents are at work in it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import psutil

from tests.benchmarks.measure import Benchmark, Samples, Section
from tests.benchmarks.waiting_agents import all_at_work, submit_waiting, waiting_script
from tests.services import installation

AGENTS = 200
ALL_AT_WORK_SECONDS = 120.0
WEIGHINGS, WEIGHING_PAUSE_SECONDS = 20, 0.2
MIB = 1024**2

IDLE = "the same worker, idle"
RSS, PSS, USS = (
    Benchmark(
        name=name,
        title=f"{kind} of a worker, {AGENTS} agents at once",
        unit="MiB",
        floor=IDLE,
        target=target,
    )
    for name, kind, target in (
        ("memory", "RSS", 250),
        ("memory-pss", "PSS", None),
        ("memory-uss", "USS", None),
    )
)
FIELDS = {RSS: "rss", PSS: "pss", USS: "uss"}
"""What psutil calls them."""


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Weigh the worker before its first job, and when every agent has used a tool and waits.

    A job's commands are processes of their own and not in it; none runs meanwhile.
    """
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as name,
        installation(Path(name), script=waiting_script(Path(name))) as place,
    ):
        worker = place.start_worker(concurrency=AGENTS, forked=False)
        assert worker.process is not None
        process = psutil.Process(worker.process.pid)
        async with place.client() as client:
            await place.ready(client)
            idle = await _weigh(process)
            ids = await submit_waiting(client, AGENTS)
            await all_at_work(place, ids, ALL_AT_WORK_SECONDS)
            busy = await _weigh(process)
            for job in ids:
                await client.cancel(job)
        for benchmark, field in FIELDS.items():
            if benchmark.name in wanted:
                yield (
                    benchmark,
                    Samples([sizes[field] for sizes in busy], [sizes[field] for sizes in idle]),
                )


async def _weigh(process: psutil.Process) -> list[dict[str, float]]:
    weighed = []
    for _ in range(WEIGHINGS):
        await asyncio.sleep(WEIGHING_PAUSE_SECONDS)
        sizes = await asyncio.to_thread(process.memory_full_info)
        weighed.append({field: getattr(sizes, field) / MIB for field in FIELDS.values()})
    return weighed


SECTION = Section(benchmarks=tuple(FIELDS), run=run)
