"""What one worker process weighs when two hundred agents are at work in it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import psutil

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.store.journal import EventType
from tests.benchmarks.measure import Benchmark, Samples, Section
from tests.integration.scripts import DONE, call, calls, conversation, write_script
from tests.services import installation

AGENTS = 200
ALL_AT_WORK_SECONDS = 120.0
MODEL_SECONDS = 600
"""How long the model thinks; the jobs are cancelled long before."""
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
        installation(Path(name), script=_waiting_script(Path(name))) as place,
    ):
        worker = place.start_worker(concurrency=AGENTS, forked=False)
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
        for benchmark, field in FIELDS.items():
            if benchmark.name in wanted:
                yield (
                    benchmark,
                    Samples([sizes[field] for sizes in busy], [sizes[field] for sizes in idle]),
                )


def _waiting_script(folder: Path) -> Path:
    """A file is written, so that the agent has had its tools and sandbox.

    Then the model takes its time.
    """
    write = calls(call("write_file", file_path="/workspace/note.txt", content="Here I was.\n"))
    return write_script(folder, conversation(".*", write, {**DONE, "delay_seconds": MODEL_SECONDS}))


async def _all_at_work(client: JobClient, ids: Collection[str]) -> None:
    """Wait until each job's tool has answered and its model is asked again."""
    coming = set(ids)
    async with asyncio.timeout(ALL_AT_WORK_SECONDS):
        while coming:
            await asyncio.sleep(0.5)  # a look reads hundreds of journals
            for job in list(coming):
                events = [event async for event in client.events(job, follow=False)]
                assert not events[-1].ends_job, "a job ended that was to wait"
                used_a_tool = any(event.type is EventType.TOOL_RESULT for event in events)
                if used_a_tool and events[-1].type is EventType.MODEL_REQUEST:
                    coming.discard(job)


async def _weigh(process: psutil.Process) -> list[dict[str, float]]:
    weighed = []
    for _ in range(WEIGHINGS):
        await asyncio.sleep(WEIGHING_PAUSE_SECONDS)
        sizes = await asyncio.to_thread(process.memory_full_info)
        weighed.append({field: getattr(sizes, field) / MIB for field in FIELDS.values()})
    return weighed


SECTION = Section(benchmarks=tuple(FIELDS), run=run)
