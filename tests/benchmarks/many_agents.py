"""How soon a thousand agents of one worker work, what they weigh, and how late its loop is."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path

import psutil

from fanout.orchestrator.client import JobClient
from fanout.workers.supervisor import number_of_processes
from tests.benchmarks.measure import Benchmark, Samples, Section
from tests.benchmarks.waiting_agents import all_at_work, submit_waiting, waiting_script
from tests.services import installation

AGENTS = 1000
NUMBERS = (100, 300, AGENTS)
ALL_AT_WORK_SECONDS = 60.0
WORK_SECONDS = 3.0
REGISTERED_SECONDS = 2.5
"""After which a worker's registration has the delays of a phase that is over."""
ENDED_SECONDS = 30.0
MIB = 1024**2

SECONDS = {
    agents: Benchmark(
        name=f"agents-{agents}",
        title=f"{agents:,} agents of one worker process, from submit until all are at work",
        unit="s",
        target=15 if agents == AGENTS else None,
        series="all at work (s)",
        at=agents,
    )
    for agents in NUMBERS
}
SEVERAL_SECONDS = Benchmark(
    name="agents-1000-processes",
    title=f"{AGENTS:,} agents of one worker, a process for each core",
    unit="s",
    target=15,
)
SEVERAL_MEMORY = Benchmark(
    name="agents-1000-processes-memory",
    title=f"PSS of this worker's processes, {AGENTS:,} agents at work",
    unit="MiB",
    floor="the same worker, idle",
    target=400,
)
MEMORY = {
    agents: Benchmark(
        name=f"agents-{agents}-memory",
        title=f"RSS of this worker, {agents:,} agents at work",
        unit="MiB",
        floor="the same worker, idle",
        target=400 if agents == AGENTS else None,
        series="memory (MiB)",
        at=agents,
    )
    for agents in NUMBERS
}
DELAYS = {
    phase: Benchmark(
        name=f"agents-1000-{phase}",
        title=f"longest delay of its loop while they {what}, at most",
        unit="ms",
        target=50,
    )
    for phase, what in (("starting", "start"), ("working", "work"), ("cancelled", "are cancelled"))
}


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Start, let work and cancel as many agents as one worker may have."""
    for agents in reversed(NUMBERS):  # ext4 makes files slowly after it has removed many
        rows = [SECONDS[agents], MEMORY[agents], *(DELAYS.values() if agents == AGENTS else ())]
        if any(row.name in wanted for row in rows):
            async for row in _one_process(agents):
                yield row
    if any(row.name in wanted for row in (SEVERAL_SECONDS, SEVERAL_MEMORY)):
        async for row in _several_processes():
            yield row


async def _several_processes() -> AsyncIterator[tuple[Benchmark, Samples]]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as name,
        installation(Path(name), script=waiting_script(Path(name))) as place,
    ):
        worker = place.start_worker(AGENTS, forked=False, FANOUT_WORKER__PROCESSES="0")
        assert worker.process is not None
        first = psutil.Process(worker.process.pid)
        async with place.client() as client:
            await place.ready(client, workers=number_of_processes(0, AGENTS))
            processes = [first, *first.children(recursive=True)]
            idle, began = _pss(processes), time.monotonic()
            ids = await submit_waiting(client, AGENTS)
            await all_at_work(place, ids, ALL_AT_WORK_SECONDS)
            yield SEVERAL_SECONDS, Samples([time.monotonic() - began])
            yield SEVERAL_MEMORY, Samples([_pss(processes)], [idle])
            await asyncio.gather(*(client.cancel(job) for job in ids))
            await asyncio.gather(*(client.wait(job, ENDED_SECONDS) for job in ids))


def _pss(processes: Sequence[psutil.Process]) -> float:
    """Return what processes take together, each shared page counted once."""
    return sum(process.memory_full_info().pss for process in processes) / MIB


async def _one_process(agents: int) -> AsyncIterator[tuple[Benchmark, Samples]]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as name,
        installation(Path(name), script=waiting_script(Path(name))) as place,
    ):
        worker = place.start_worker(concurrency=agents, forked=False)
        assert worker.process is not None
        process = psutil.Process(worker.process.pid)
        async with place.client() as client:
            await place.ready(client)
            idle, before = process.memory_info().rss / MIB, await _delays(client)
            began = time.monotonic()
            ids = await submit_waiting(client, agents)
            await all_at_work(place, ids, ALL_AT_WORK_SECONDS)
            yield SECONDS[agents], Samples([time.monotonic() - began])
            yield MEMORY[agents], Samples([process.memory_info().rss / MIB], [idle])
            started = await _delays(client)
            await asyncio.sleep(WORK_SECONDS)
            worked = await _delays(client)
            await asyncio.gather(*(client.cancel(job) for job in ids))
            await asyncio.gather(*(client.wait(job, ENDED_SECONDS) for job in ids))
            if agents == AGENTS:
                yield DELAYS["starting"], Samples([_longest_ms(before, started)])
                yield DELAYS["working"], Samples([_longest_ms(started, worked)])
                yield DELAYS["cancelled"], Samples([_longest_ms(worked, await _delays(client))])


async def _delays(client: JobClient) -> Mapping[str, float]:
    """Return the worker's histogram, with everything until now."""
    await asyncio.sleep(REGISTERED_SECONDS)
    (worker,) = await client.workers()
    return {bound: count for bound, count in worker.loop_delays.items() if bound != "sum"}


def _longest_ms(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Return the bound below which all delays between two histograms were, in milliseconds."""
    added = {bound: after[bound] - before[bound] for bound in after}
    return 1000 * min(float(bound) for bound in added if added[bound] == added["+Inf"])


SECTION = Section(
    benchmarks=(
        *SECONDS.values(),
        *MEMORY.values(),
        *DELAYS.values(),
        SEVERAL_SECONDS,
        SEVERAL_MEMORY,
    ),
    run=run,
)
