"""What the harness costs beside ADK's own agent: CPU time of a model turn, memory of an agent."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Collection
from pathlib import Path

from google.adk.runners import InMemoryRunner

from tests.benchmarks.agents import KINDS, Kind, converse
from tests.benchmarks.idle_agents import AGENTS
from tests.benchmarks.measure import Benchmark, Samples, Section

TURNS = 30
ROUNDS = 10
WEIGHINGS = 2

TURN = Benchmark(
    name="harness-turn",
    title=f"CPU that the harness adds to a model turn ({TURNS} turns)",
    unit="ms",
    floor="a whole turn of ADK alone",
    target=5,
)
MEMORY = Benchmark(
    name="harness-memory",
    title=f"memory that the harness adds to an idle agent ({AGENTS} agents)",
    unit="MiB",
    floor="an idle agent of ADK alone",
    target=0.5,
)


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Both kinds of agents do the same in turn; the differences are ours."""
    if TURN.name in wanted:
        with tempfile.TemporaryDirectory(prefix="bench-") as name:
            folder = Path(name)
            await _turn("deep", folder)
            await _turn("plain", folder)
            pairs = [
                (await _turn("deep", folder), await _turn("plain", folder)) for _ in range(ROUNDS)
            ]
        yield TURN, Samples([deep - plain for deep, plain in pairs], [plain for _, plain in pairs])
    if MEMORY.name in wanted:
        weights = [(await _weight("deep"), await _weight("plain")) for _ in range(WEIGHINGS)]
        yield (
            MEMORY,
            Samples([deep - plain for deep, plain in weights], [plain for _, plain in weights]),
        )


async def _turn(kind: Kind, folder: Path) -> float:
    """CPU milliseconds of this process for one turn; making the agent is not in it."""
    runner = InMemoryRunner(app=KINDS[kind](TURNS, folder))
    began = time.process_time()
    await converse(runner)
    return (time.process_time() - began) * 1000 / TURNS


async def _weight(kind: Kind) -> float:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.benchmarks.idle_agents", kind, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return float(output.decode().splitlines()[-1])


SECTION = Section(benchmarks=(TURN, MEMORY), run=run)
