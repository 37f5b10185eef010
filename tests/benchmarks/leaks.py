"""What stays behind after thousands of commands and sandboxes in a row.

Counted are the descriptors, threads and child processes of the worker's process, the processes and
descriptors of a sandbox that ran commands, and the containers, volumes and networks of the engine.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Collection
from pathlib import Path

from fanout.workers.sandbox.docker.naming import INSTALLATION
from fanout.workers.sandbox.protocol import Command, Sandbox
from tests.benchmarks.engine import Bench, bench
from tests.benchmarks.measure import Benchmark, Samples, Section

COMMANDS, FIRST_COMMANDS = 10_000, 500
"""The first ones fill caches and grow the heap, and are not counted."""
SANDBOXES, FIRST_SANDBOXES = 1_000, 20
MOST_THREADS = 32
"""Of the pool of an asyncio loop, on any machine."""
AT_ONCE = 2
"""Sandboxes opened at once: more are no faster on two cores."""

COMMANDS_LEFT = Benchmark(
    name="commands-left",
    title=f"left behind by {COMMANDS:,} commands",
    unit="left",
    target=0,
)
COMMANDS_MEMORY = Benchmark(
    name="commands-memory",
    title=f"memory that {COMMANDS:,} commands added",
    unit="KiB",
    target=4096,
)
SANDBOXES_LEFT = Benchmark(
    name="sandboxes-left",
    title=f"left behind by {SANDBOXES:,} sandboxes",
    unit="left",
    target=0,
)
SANDBOXES_MEMORY = Benchmark(
    name="sandboxes-memory",
    title=f"memory that {SANDBOXES:,} sandboxes added",
    unit="KiB",
    target=4096,
)


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Count before and after; both rows of a pair are of one run."""
    await _start_threads()
    async with bench() as place:
        if {COMMANDS_LEFT.name, COMMANDS_MEMORY.name} & set(wanted):
            left, added = await _after_commands(place)
            yield COMMANDS_LEFT, Samples([left])
            yield COMMANDS_MEMORY, Samples([added])
        if {SANDBOXES_LEFT.name, SANDBOXES_MEMORY.name} & set(wanted):
            left, added = await _after_sandboxes(place)
            yield SANDBOXES_LEFT, Samples([left])
            yield SANDBOXES_MEMORY, Samples([added])


async def _start_threads() -> None:
    """Start all threads of the loop's pool: it starts one more whenever none of them is idle."""
    await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.1) for _ in range(MOST_THREADS)))


async def _after_commands(place: Bench) -> tuple[float, float]:
    async with place.sandbox() as sandbox:
        await _run(sandbox, FIRST_COMMANDS)
        inside = await asyncio.to_thread(_held_inside, place)
        before, memory = _held(), _memory_kib()
        await _run(sandbox, COMMANDS)
        left, added = _held() - before, max(_memory_kib() - memory, 0)
        left += await asyncio.to_thread(_held_inside, place) - inside
        return float(left), float(added)


async def _run(sandbox: Sandbox, number: int) -> None:
    for _ in range(number):
        assert (await sandbox.run(Command(argv=["true"]))).exit_code == 0


async def _after_sandboxes(place: Bench) -> tuple[float, float]:
    await _open(place, FIRST_SANDBOXES)
    await place.provider._removals.finish()
    before, memory = await _held_with_engine(place), _memory_kib()
    await _open(place, SANDBOXES)
    await place.provider._removals.finish()
    left = await _held_with_engine(place) - before
    return float(left), float(max(_memory_kib() - memory, 0))


async def _open(place: Bench, number: int) -> None:
    """Open and close that many sandboxes, each with a command in it."""
    numbers = iter(range(number))

    async def open_some() -> None:
        for _ in numbers:
            async with place.sandbox() as sandbox:
                await _run(sandbox, 1)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(open_some())


def _held() -> int:
    """The descriptors, threads and children of this process."""
    gc.collect()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return descriptors + threading.active_count() + len(children)


def _held_inside(place: Bench) -> int:
    """The processes of all containers, and the descriptors of the first of each."""
    label = {"label": f"{INSTALLATION}={place.installation}"}
    held = 0
    for container in place.api.containers(filters=label):
        first = place.api.inspect_container(container["Id"])["State"]["Pid"]
        held += len(place.api.top(container["Id"])["Processes"])
        held += len(list(Path(f"/proc/{first}/fd").iterdir()))
    return held


async def _held_with_engine(place: Bench) -> int:
    """Also the containers, volumes and networks of the installation.

    The engine is asked first: the SDK of this benchmark keeps a connection for each kind.
    """

    def count() -> int:
        label = {"label": f"{INSTALLATION}={place.installation}"}
        found = place.api.containers(all=True, filters=label)
        volumes = place.api.volumes(filters=label)["Volumes"] or []
        return len(found) + len(volumes) + len(place.api.networks(filters=label))

    counted = await asyncio.to_thread(count)
    return _held() + counted


def _memory_kib() -> int:
    """The memory of this process that no other has."""
    gc.collect()
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1])
    raise RuntimeError("the kernel does not say how much memory this process has")


SECTION = Section(
    benchmarks=(COMMANDS_LEFT, COMMANDS_MEMORY, SANDBOXES_LEFT, SANDBOXES_MEMORY), run=run
)
