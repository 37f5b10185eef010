"""A snapshot of a folder: the first one, and later ones by other processes."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Collection
from pathlib import Path

from fanout.orchestrator.jobs.spec import StartFiles
from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.orchestrator.workspace.snapshots.index import SnapshotIndexes
from fanout.orchestrator.workspace.workspace import Workspace
from tests.benchmarks.measure import (
    Benchmark,
    Samples,
    Section,
    interleaved,
    milliseconds,
    milliseconds_of,
)
from tests.benchmarks.source_tree import path_of, write_tree

ROUNDS = 7
LARGE_FILES, LARGE_FILE_BYTES = 50_000, 40 * 1024
WEIGH = """
import asyncio, sys
from pathlib import Path
from tests.benchmarks.snapshots import peak_kib, start_files
for tree in sys.argv[2:]:
    asyncio.run(start_files(Path(sys.argv[1]), Path(tree)))
    print(peak_kib())
"""
"""Of an empty folder first: then everything is imported."""

GIT_AND_HASHES = "git status, SHA-256 of each file"
FIRST, AGAIN, EDITED = (
    Benchmark(
        name=name,
        title=f"snapshot of 5,000 files, {case}",
        unit="ms",
        floor=GIT_AND_HASHES,
        target_ratio=ratio,
        target=target,
    )
    for name, case, ratio, target in (
        ("snapshot-first", "the first", 1.5, None),
        ("snapshot-again", "again, nothing changed", None, 30),
        ("snapshot-edit", "again, one file changed", None, None),
    )
)
LARGE = Benchmark(
    name="snapshot-large",
    title="memory for a snapshot of 50,000 files, 2 GB",
    unit="MiB",
    floor="the process before",
    target=64,
)


def peak_kib() -> int:
    """The most memory that this process has had; `ru_maxrss` begins with its parent's."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


async def start_files(home: Path, tree: Path) -> StartFiles:
    """Store what jobs start from, as a process does that has just been started."""
    workspace = Workspace(tree, indexes=SnapshotIndexes(home / "indexes"))
    return await workspace.start_files(BlobStore(str(home / "blobs")))


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Measure on one tree; `snapshot-large` has a tree of its own."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        home = Path(name)
        if {FIRST.name, AGAIN.name, EDITED.name}.intersection(wanted):
            tree = home / "tree"
            tree.mkdir()
            write_tree(tree)
            for benchmark, samples in (
                (FIRST, _first_ones),
                (AGAIN, _again),
                (EDITED, _edited),
            ):
                if benchmark.name in wanted:
                    yield benchmark, await samples(home, tree)
        if LARGE.name in wanted:
            yield LARGE, await asyncio.to_thread(_large, home)


async def _first_ones(home: Path, tree: Path) -> Samples:
    async def ours() -> float:
        await asyncio.to_thread(_forget, home)
        return await milliseconds(start_files(home, tree))

    return await interleaved(ROUNDS, ours, lambda: _git_and_hashes(tree))


async def _again(home: Path, tree: Path) -> Samples:
    await start_files(home, tree)
    return await interleaved(
        ROUNDS, lambda: milliseconds(start_files(home, tree)), lambda: _git_and_hashes(tree)
    )


async def _edited(home: Path, tree: Path) -> Samples:
    numbers = itertools.count()

    async def ours() -> float:
        content = f"edited = {next(numbers)}\n"
        await asyncio.to_thread((tree / path_of(7)).write_text, content)
        return await milliseconds(start_files(home, tree))

    return await interleaved(ROUNDS, ours, lambda: _git_and_hashes(tree))


async def _git_and_hashes(tree: Path) -> float:
    return await milliseconds_of(lambda: _status_and_hash(tree))


def _status_and_hash(tree: Path) -> None:
    subprocess.run(["git", "status", "--porcelain"], cwd=tree, check=True, capture_output=True)
    for folder, _, names in os.walk(tree):
        for name in names:
            with Path(folder, name).open("rb") as file:
                hashlib.file_digest(file, "sha256").digest()


def _forget(home: Path) -> None:
    for name in ("indexes", "blobs"):
        shutil.rmtree(home / name, ignore_errors=True)


def _large(home: Path) -> Samples:
    """Weigh a process of its own; the files are sparse, so that only their reading takes time."""
    (home / "empty").mkdir()
    for number in range(LARGE_FILES):
        path = home / "large" / path_of(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(LARGE_FILE_BYTES)
    command = [sys.executable, "-c", WEIGH, home, home / "empty", home / "large"]
    done = subprocess.run(command, check=True, capture_output=True)
    before, after = map(int, done.stdout.split())
    return Samples([(after - before) / 1024], [before / 1024])


SECTION = Section(benchmarks=(FIRST, AGAIN, EDITED, LARGE), run=run)
