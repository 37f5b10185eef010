"""Sandboxes: how soon one is there, and what a command and a file cost in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection

from fanout.workers.sandbox.protocol import WORKSPACE, Command, Sandbox
from tests.benchmarks.engine import Bench, bench
from tests.benchmarks.measure import (
    Benchmark,
    Samples,
    Section,
    interleaved,
    milliseconds,
    milliseconds_of,
)
from tests.benchmarks.plain_container import COMMAND, PlainContainer

STARTS = 20
OPERATIONS = 40
FILE = bytes(range(256)) * 16
"""4 KiB."""

COLD_START = Benchmark(
    name="cold-start",
    title="cold start, 10 files, first command",
    unit="ms",
    floor="API create, start, exec",
    target_ratio=1.25,
)
COMMAND_RUN = Benchmark(
    name="command", title="trivial command", unit="ms", floor="API exec", target_ratio=1 / 12
)
READ = Benchmark(
    name="read", title="read 4 KB", unit="ms", floor="get_archive", target_ratio=1 / 30
)
WRITE = Benchmark(
    name="write", title="write 4 KB", unit="ms", floor="put_archive", target_ratio=1 / 30
)


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Measure the starts, then the operations in one sandbox and in one plain container."""
    async with bench() as place:
        if COLD_START.name in wanted:
            yield COLD_START, await _cold_starts(place)
        async with place.sandbox() as sandbox, place.plain() as plain:
            for benchmark, measure in ((COMMAND_RUN, _commands), (READ, _reads), (WRITE, _writes)):
                if benchmark.name in wanted:
                    yield benchmark, await measure(sandbox, plain)


async def _cold_starts(place: Bench) -> Samples:
    tree = place.folder / "small"
    tree.mkdir()
    for number in range(10):
        (tree / f"file-{number}.txt").write_bytes(FILE)
    snapshot = await place.snapshot(tree)

    async def ours() -> float:
        return await place.opened(snapshot, _run_first_command)

    async def floor() -> float:
        started: list[PlainContainer] = []

        def start_and_run() -> None:
            started.append(place.start_plain())
            started[0].run(COMMAND)

        try:
            return await milliseconds_of(start_and_run)
        finally:
            for container in started:
                await asyncio.to_thread(container.remove)

    return await interleaved(STARTS, ours, floor)


async def _run_first_command(sandbox: Sandbox) -> None:
    assert (await sandbox.run(Command(argv=COMMAND))).exit_code == 0


async def _commands(sandbox: Sandbox, plain: PlainContainer) -> Samples:
    return await interleaved(
        OPERATIONS,
        lambda: milliseconds(sandbox.run(Command(argv=COMMAND))),
        lambda: milliseconds_of(lambda: plain.run(COMMAND)),
    )


async def _reads(sandbox: Sandbox, plain: PlainContainer) -> Samples:
    await sandbox.write_bytes(f"{WORKSPACE}/file", FILE)
    await asyncio.to_thread(plain.write, "/tmp", "file", FILE)
    assert await sandbox.read_bytes(f"{WORKSPACE}/file") == await asyncio.to_thread(
        plain.read, "/tmp/file"
    )
    return await interleaved(
        OPERATIONS,
        lambda: milliseconds(sandbox.read_bytes(f"{WORKSPACE}/file")),
        lambda: milliseconds_of(lambda: plain.read("/tmp/file")),
    )


async def _writes(sandbox: Sandbox, plain: PlainContainer) -> Samples:
    return await interleaved(
        OPERATIONS,
        lambda: milliseconds(sandbox.write_bytes(f"{WORKSPACE}/written", FILE)),
        lambda: milliseconds_of(lambda: plain.write("/tmp", "written", FILE)),
    )


SECTION = Section(benchmarks=(COLD_START, COMMAND_RUN, READ, WRITE), run=run)
