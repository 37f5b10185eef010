"""How long the files of a session's state block the event loop that all agents share."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping

from google.adk.sessions.state import State

from fanout.orchestrator.deep_agent.backends.composite import CompositeBackend
from fanout.orchestrator.deep_agent.backends.protocol import Backend
from fanout.orchestrator.deep_agent.backends.state import DictState, StateBackend
from fanout.orchestrator.deep_agent.tools.files import Files
from fanout.orchestrator.deep_agent.tools.search import FileSearch
from tests.benchmarks.measure import Benchmark, Samples, Section
from tests.unit.deep_agent.running import make_state

FILES = 10_000
ROUNDS = 5
TICK_SECONDS = 0.0005

LONGEST = Benchmark(
    name="state-loop",
    title=f"longest block of the loop by one file tool, {FILES} files in the state",
    unit="ms",
    floor="the longest block by a sleep",
    target=20,
)


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Each round does everything once; it counts with its longest block."""
    if LONGEST.name not in wanted:
        return
    await blocks()  # compiles patterns and starts threads
    gc.collect()
    gc.freeze()  # what was imported: its collection takes 40 ms, whatever is running
    ours, floor = [], []
    for _ in range(ROUNDS):
        floor.append(await _longest_block(lambda: asyncio.sleep(0.2)))
        ours.append(max((await blocks()).values()))
    gc.unfreeze()
    yield LONGEST, Samples(ours, floor)


async def blocks() -> Mapping[str, float]:
    """Return the longest block of each operation, in milliseconds."""
    content = b"a line of text\n" * 70
    files = {f"/src/src/{number % 100}/{number}.py": content for number in range(FILES)}
    found = {}
    for title in ("state", "composite"):
        backend: Backend = StateBackend(
            State(value=dict(make_state(files)), delta={}), search_root="/src"
        )
        if title == "composite":
            backend = CompositeBackend(StateBackend(DictState()), {"/src": backend})
        for name, work in _operations(backend).items():
            found[f"{title} {name}"] = await _longest_block(work)
    return found


def _operations(backend: Backend) -> Mapping[str, Callable[[], Awaitable[object]]]:
    search, files = FileSearch(backend), Files(backend)
    return {
        "grep with a glob": lambda: search.grep("no such text", glob="*.py"),
        "grep with many hits": lambda: search.grep("of text", output_mode="content"),
        "glob": lambda: search.glob("**/*.py"),
        "ls": lambda: search.ls("/src/src/7"),
        "read": lambda: files.read("/src/src/7/7.py"),
        "stat": lambda: backend.stat("/src/src/7"),
        "walk": lambda: backend.walk("/", max_entries=FILES, timeout_seconds=10),
        "write": lambda: backend.write_bytes("/src/src/new/file", b"text"),
        "delete": lambda: backend.delete("/src/src"),
        "rewrite": lambda: backend.write_bytes("/src/src/7/7.py", b"text"),
    }


async def _longest_block(work: Callable[[], Awaitable[object]]) -> float:
    """Return the longest time, in milliseconds, in which nothing else had its turn."""
    longest, last, is_done = 0.0, time.perf_counter(), False

    async def tick() -> None:
        nonlocal longest, last
        while not is_done:
            await asyncio.sleep(TICK_SECONDS)
            now = time.perf_counter()
            longest, last = max(longest, now - last - TICK_SECONDS), now

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    last = time.perf_counter()
    await work()
    is_done = True
    await ticking
    return longest * 1000


SECTION = Section(benchmarks=(LONGEST,), run=run)
