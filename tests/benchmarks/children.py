"""Children of a job that changed twenty files: what it costs to give them its files.

The base is on the host, and each round's changes are new to it. Beside it the way that fanout went
before it had layers: a whole new archive for each state of the parent's files.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import random
import tarfile
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import IO

from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.jobs.spec import StartFiles
from fanout.orchestrator.workspace import layers
from fanout.workers.sandbox.protocol import WORKSPACE, Command, Sandbox
from tests.benchmarks.engine import Bench, bench
from tests.benchmarks.measure import Benchmark, Sample, Samples, Section, interleaved, milliseconds
from tests.benchmarks.source_tree import edits, path_of

ROUNDS = 15
ARCHIVE_ROUNDS = 3
SIZES = (5_000, 50_000)


def _benchmark(files: int, *, layered: bool) -> Benchmark:
    return Benchmark(
        name=f"child-{files // 1000}k" + ("" if layered else "-archive"),
        title=f"child of {files:,} files, 20 changed"
        + ("" if layered else ", by a whole archive (before layers)"),
        unit="ms",
        floor="open an empty one",
        target_ratio=1.2 if layered else None,
    )


LAYERED = {files: _benchmark(files, layered=True) for files in SIZES}
ARCHIVED = {files: _benchmark(files, layered=False) for files in SIZES}


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Measure both sizes, each in both ways."""
    for files in SIZES:
        ways = ((LAYERED[files], _layered, ROUNDS), (ARCHIVED[files], _archived, ARCHIVE_ROUNDS))
        if not {benchmark.name for benchmark, _, _ in ways}.intersection(wanted):
            continue
        async with bench() as place:
            archive = place.folder / "base.tar"
            await asyncio.to_thread(_write_base, archive, files)
            start = StartFiles(await place.blobs.put_file(archive))
            async with place.sandbox(start) as parent:
                for benchmark, way, rounds in ways:
                    if benchmark.name in wanted:
                        ours = _children(place, parent, start, way)
                        yield benchmark, await interleaved(rounds, ours, _empty(place))


def _children(
    place: Bench,
    parent: Sandbox,
    start: StartFiles,
    way: Callable[[Bench, StartFiles, IO[bytes]], contextlib.AbstractAsyncContextManager[object]],
) -> Sample:
    rounds = itertools.count()

    async def ours() -> float:
        made = edits(next(rounds))
        for path, content in made.written.items():
            await parent.write_bytes(f"{WORKSPACE}/{path}", content)
        await parent.run(Command(argv=["rm", "-f", *made.deleted]))
        with await parent.changes() as bundle:
            return await _timed(way(place, start, bundle))

    return ours


def _empty(place: Bench) -> Sample:
    return lambda: _timed(place.sandbox(StartFiles()))


async def _timed(opening: contextlib.AbstractAsyncContextManager[object]) -> float:
    """Milliseconds until it is open; closing it is not in it."""
    async with contextlib.AsyncExitStack() as stack:
        return await milliseconds(stack.enter_async_context(opening))


@contextlib.asynccontextmanager
async def _layered(place: Bench, start: StartFiles, bundle: IO[bytes]) -> AsyncIterator[object]:
    async with place.sandbox(await layers.start_after(place.blobs, start, bundle)) as child:
        yield child


@contextlib.asynccontextmanager
async def _archived(place: Bench, start: StartFiles, bundle: IO[bytes]) -> AsyncIterator[object]:
    assert start.snapshot is not None
    base = await place.blobs.fetch(start.snapshot)
    whole, _ = await place.blobs.put_written(lambda sink: _write_whole(sink, base, bundle))
    async with place.sandbox(StartFiles(whole)) as child:
        yield child


def _write_base(target: Path, files: int) -> None:
    """Write the archive of a tree of source files, 300 bytes to 3 KB of text each."""
    source = random.Random(files)  # noqa: S311 - the same tree in every run
    with tarfile.open(target, "w") as archive:
        for number in range(files):
            text = f"value = {source.random()}\n" * source.randint(10, 100)
            member = tarfile.TarInfo(path_of(number))
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))


def _write_whole(sink: IO[bytes], base: Path, bundle: IO[bytes]) -> None:
    """Write a whole archive with the changes, as it was done before there were layers."""
    with (
        ChangeBundle.open(bundle) as opened,
        tarfile.open(base, "r:") as old,
        tarfile.open(fileobj=sink, mode="w") as new,
    ):
        changed = {file.path: file.after for file in opened.changes.files}
        for member in old:
            if member.name not in changed:
                new.addfile(member, old.extractfile(member) if member.isreg() else None)
        for path, version in sorted(changed.items()):
            if version is not None:
                content = opened.content(version)
                member = tarfile.TarInfo(path)
                member.size = len(content)
                new.addfile(member, io.BytesIO(content))


SECTION = Section(benchmarks=(*LAYERED.values(), *ARCHIVED.values()), run=run)
