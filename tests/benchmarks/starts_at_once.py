"""Sandboxes that are asked for at the same moment: how many a second are ready."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

from fanout.workers.sandbox.protocol import Command
from tests.benchmarks.engine import Bench, bench
from tests.benchmarks.measure import Benchmark, Samples, Section
from tests.benchmarks.plain_container import COMMAND, PlainContainer

NUMBERS = (1, 2, 4, 8, 16, 32)
ROUNDS = 3
SERIES = "sandboxes ready a second"

BENCHMARKS = {
    number: Benchmark(
        name=f"starts-{number}",
        title=f"{number} sandboxes at once, each with a command",
        unit="a second",
        floor="API create, start, exec",
        series=SERIES,
        at=number,
    )
    for number in NUMBERS
}


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Start them in turn with as many plain containers."""
    async with bench() as place:
        await _ours(place, 1)  # a warm-up: the steward, and the engine's caches
        for number, benchmark in BENCHMARKS.items():
            if benchmark.name not in wanted:
                continue
            ours, floor = [], []
            for _ in range(ROUNDS if number < NUMBERS[-1] else 1):
                ours.append(await _ours(place, number))
                floor.append(await _plain(place, number))
            yield benchmark, Samples(ours, floor)


async def _ours(place: Bench, number: int) -> float:
    async with contextlib.AsyncExitStack() as opened:

        async def open_one() -> None:
            sandbox = await opened.enter_async_context(place.sandbox())
            assert (await sandbox.run(Command(argv=COMMAND))).exit_code == 0

        return await _a_second(number, [open_one] * number)


async def _plain(place: Bench, number: int) -> float:
    started: list[PlainContainer] = []

    def start_and_run() -> None:
        container = place.start_plain()
        started.append(container)
        container.run(COMMAND)

    async def open_one() -> None:
        await asyncio.to_thread(start_and_run)

    try:
        return await _a_second(number, [open_one] * number)
    finally:
        for container in started:
            await asyncio.to_thread(container.remove)


async def _a_second(number: int, starts: Sequence[Callable[[], Awaitable[None]]]) -> float:
    began = time.perf_counter()
    await asyncio.gather(*(start() for start in starts))
    return number / (time.perf_counter() - began)


SECTION = Section(benchmarks=tuple(BENCHMARKS.values()), run=run)
