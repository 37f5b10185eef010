"""What one look of a request that waits for its turn at a model costs Redis, by how many wait."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path

from redis.asyncio import Redis

from fanout.orchestrator.jobs.spec import ModelRate
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.rate_limiter import RedisRateLimiter
from tests.benchmarks.measure import Benchmark, Samples, Section
from tests.services import RedisProcess

FEW = 10
WAITING = (100, 2_000, 20_000)
SENT = 100
"""Requests and, with ten tokens each, the budget of a window, which are used up."""
TOKENS = 10
ROUNDS, LOOKS, AT_ONCE = 7, 200, 100
WINDOW_SECONDS = 3600.0
"""None leaves the window, and none of those who wait is late, while it is measured."""
FLAT = 2.0

ROWS = {
    waiting: Benchmark(
        name=f"model-turn-{waiting}",
        title=f"Redis, for one look of a request to a model, {waiting:,} waiting",
        unit="ms",
        floor=f"with {FEW} waiting",
        target_ratio=FLAT,
    )
    for waiting in WAITING
}


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Let many requests wait, each number of them for a model of its own, and look in turn."""
    counts = [waiting for waiting, row in ROWS.items() if row.name in wanted]
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        server = RedisProcess(Path(name))
        await asyncio.to_thread(server.start)
        try:
            async with connect(server.url) as redis:
                rate = ModelRate(requests_per_minute=SENT, tokens_per_minute=SENT * TOKENS)
                rates = {str(count): rate for count in (*counts, FEW)}
                limits = RedisRateLimiter(redis, Keys(), rates, window_seconds=WINDOW_SECONDS)
                for count in sorted(map(int, rates), reverse=True):
                    await _look(limits, count, range(SENT + count))
                costs: dict[int, list[float]] = {count: [] for count in (*counts, FEW)}
                for _ in range(ROUNDS):
                    for count, found in costs.items():
                        found.append(await _cost(redis, limits, count))
                for count in counts:
                    yield ROWS[count], Samples(costs[count], costs[FEW])
        finally:
            await asyncio.to_thread(server.stop)


async def _look(limits: RedisRateLimiter, waiting: int, numbers: Sequence[int]) -> None:
    """Let requests of a model look, by their numbers."""
    for first in range(0, len(numbers), AT_ONCE):
        names = [f"r{number}" for number in numbers[first : first + AT_ONCE]]
        await asyncio.gather(*(limits._turn(name, str(waiting), TOKENS) for name in names))


async def _cost(redis: Redis, limits: RedisRateLimiter, waiting: int) -> float:
    """The milliseconds of one look of those that wait, as Redis measures its scripts."""
    await redis.config_resetstat()
    await _look(limits, waiting, [SENT + number * 97 % waiting for number in range(LOOKS)])
    spent = (await redis.info("commandstats"))["cmdstat_evalsha"]
    return float(spent["usec_per_call"]) / 1000


SECTION = Section(benchmarks=tuple(ROWS.values()), run=run)
