"""`python -m tests.benchmarks.idle_agents deep|plain`.

What one idle agent weighs in this process, in MiB.

A process of its own for each answer: memory that another measurement freed would be used again.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
from pathlib import Path

import psutil
from google.adk.runners import InMemoryRunner

from tests.benchmarks.agents import KINDS, Kind, converse

AGENTS = 200
TURNS = 3
"""So that the agent has had its tools, its instruction and a session."""
WARM_UP = 5
MIB = 1024**2


async def weigh(kind: Kind, folder: Path) -> float:
    """The growth of the resident memory by one agent with its runner and its session."""
    held: list[InMemoryRunner] = [await _idle(kind, folder) for _ in range(WARM_UP)]
    gc.collect()
    process = psutil.Process()
    before = process.memory_info().rss
    held += [await _idle(kind, folder) for _ in range(AGENTS)]
    gc.collect()
    grown: float = process.memory_info().rss - before
    del held
    return grown / AGENTS / MIB


async def _idle(kind: Kind, folder: Path) -> InMemoryRunner:
    runner = InMemoryRunner(app=KINDS[kind](TURNS, folder))
    await converse(runner)
    return runner


def main() -> None:
    kind: Kind = "deep" if sys.argv[1] == "deep" else "plain"
    with tempfile.TemporaryDirectory() as name:
        print(asyncio.run(weigh(kind, Path(name))))


if __name__ == "__main__":
    main()
