"""What a benchmark is, how it is sampled beside its floor, and what its row says."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Sample = Callable[[], Awaitable[float]]
"""Does the work once and gives what it took, in the benchmark's unit; set-up and clean-up are not
in it."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One row of the table: what is measured, what it is held against, and how good it must be."""

    name: str
    title: str
    unit: Literal["ms", "s", "MiB", "%", "KiB", "a second", "times", "left"]
    floor: str = ""
    """What the floor is, in words; empty without one."""
    target_ratio: float | None = None
    """The most that the median may be, as a multiple of the floor's."""
    target: float | None = None
    """The most that the median may be, in the unit."""
    target_p95: float | None = None
    """The most that the p95 may be, in the unit."""
    target_p95_ratio: float | None = None
    """The most that the p95 may be, as a multiple of the floor's."""
    target_least: float | None = None
    """The least that the median may be, in the unit."""
    series: str | None = None
    """The curve that the row is a point of, in the plots; None: it is none's."""
    at: float | None = None
    """Where on the curve: how many jobs, agents or sandboxes it was measured with."""


@dataclass(frozen=True)
class Samples:
    """What was measured, in the benchmark's unit."""

    ours: Sequence[float]
    floor: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True)
class Section:
    """Benchmarks that share their set-up. `run` takes the names that are wanted."""

    benchmarks: tuple[Benchmark, ...]
    run: Callable[[Collection[str]], AsyncIterator[tuple[Benchmark, Samples]]]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A benchmark and its result; the field names are those of the JSON document."""

    name: str
    title: str
    unit: str
    median: float | None = None
    p95: float | None = None
    most: float | None = None
    samples: int = 0
    floor: str
    floor_median: float | None = None
    floor_p95: float | None = None
    floor_samples: int = 0
    ratio: float | None = None
    """Of the medians."""
    target_ratio: float | None
    target: float | None
    target_p95: float | None
    target_p95_ratio: float | None
    target_least: float | None
    series: str | None
    at: float | None
    ok: bool | None = None
    """None: not measured, or there is no target."""
    not_measured: str | None = None
    """Why, if it was not."""


def row_of(benchmark: Benchmark, samples: Samples) -> Row:
    """The row of a benchmark that was measured."""
    median = statistics.median(samples.ours)
    row = Row(
        **vars(benchmark),
        median=round(median, 3),
        p95=round(p95(samples.ours), 3),
        most=round(max(samples.ours), 3),
        samples=len(samples.ours),
    )
    if samples.floor:
        floor_median = statistics.median(samples.floor)
        row = replace(
            row,
            floor_median=round(floor_median, 3),
            floor_p95=round(p95(samples.floor), 3),
            floor_samples=len(samples.floor),
            ratio=round(median / floor_median, 5),
        )
    met = _met(benchmark, samples)
    return replace(row, ok=all(met) if met else None)


def _met(benchmark: Benchmark, samples: Samples) -> list[bool]:
    """Whether each target that the benchmark has is met."""
    median, high = statistics.median(samples.ours), p95(samples.ours)
    met = []
    if benchmark.target_ratio is not None:
        met.append(median <= benchmark.target_ratio * statistics.median(samples.floor))
    if benchmark.target is not None:
        met.append(median <= benchmark.target)
    if benchmark.target_least is not None:
        met.append(median >= benchmark.target_least)
    if benchmark.target_p95 is not None:
        met.append(high <= benchmark.target_p95)
    if benchmark.target_p95_ratio is not None:
        met.append(high <= benchmark.target_p95_ratio * p95(samples.floor))
    return met


def missing_row(benchmark: Benchmark, why: str) -> Row:
    """The row of a benchmark that could not be measured."""
    return Row(**vars(benchmark), not_measured=why)


def p95(values: Sequence[float]) -> float:
    """The value that 95 of 100 samples do not exceed, between the two nearest samples."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


async def interleaved(
    rounds: int, ours: Sample, floor: Sample, *, ours_a_round: int = 1
) -> Samples:
    """Sample both in turn, after one warm-up each: what disturbs the machine disturbs both."""
    measured, floors = [], []
    await ours()
    await floor()
    for _ in range(rounds):
        measured += [await ours() for _ in range(ours_a_round)]
        floors.append(await floor())
    return Samples(measured, floors)


async def milliseconds(work: Awaitable[object]) -> float:
    """How long the work takes."""
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) * 1000


async def milliseconds_of(call: Callable[[], object]) -> float:
    """How long a blocking call takes.

    It runs in a thread, and the way to and from it does not count.
    """

    def clocked() -> float:
        began = time.perf_counter()
        call()
        return (time.perf_counter() - began) * 1000

    return await asyncio.to_thread(clocked)
