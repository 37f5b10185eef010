"""A workspace of 5,000 files: filling a sandbox with it, and finding what a job changed in it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Collection

from orchestrator.jobs.changes import ChangeBundle
from orchestrator.jobs.spec import BlobId
from tests.benchmarks.engine import Bench, bench
from tests.benchmarks.measure import Benchmark, Samples, Section, interleaved, milliseconds, milliseconds_of
from tests.benchmarks.source_tree import ADDED, DELETED, EDITED, LIST_CHANGES, edits, write_tree
from workers.sandbox.protocol import WORKSPACE, Command, Sandbox

SEEDINGS, OPENINGS_A_SEEDING = 4, 5
CHANGE_LISTS = 15

SEED = Benchmark(
    name="seed",
    title="5,000 files into a sandbox, snapshot on the host",
    unit="ms",
    floor="SDK put_archive of the same tree",
    target_ratio=1 / 100,
)
CHANGES = Benchmark(
    name="changes",
    title="bundle of 20 changes among 5,000 files",
    unit="ms",
    floor="git add -A && git diff --cached --binary in a sandbox",
    target_ratio=1.0,
)


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Measure on one tree; its first sandbox, which unpacks the snapshot, is a warm-up."""
    async with bench() as place:
        tree = place.folder / "tree"
        tree.mkdir()
        await asyncio.to_thread(write_tree, tree)
        snapshot = await place.snapshot(tree)
        if SEED.name in wanted:
            yield SEED, await _seedings(place, snapshot)
        if CHANGES.name in wanted:
            yield CHANGES, await _change_lists(place, snapshot)


async def _seedings(place: Bench, snapshot: BlobId) -> Samples:
    """Opening with the tree, less opening without it right after; what a start costs apart is not in it."""
    archive = await asyncio.to_thread((await place.blobs.fetch(snapshot)).read_bytes)
    numbers = itertools.count()

    async def opening(of: BlobId | None) -> float:
        sandbox = place.sandbox(of)
        try:
            return await milliseconds(sandbox.__aenter__())
        finally:
            await sandbox.__aexit__(None, None, None)

    async def ours() -> float:
        return await opening(snapshot) - await opening(None)

    async with place.plain() as plain:

        async def floor() -> float:
            folder = f"/tmp/tree-{next(numbers)}"
            await asyncio.to_thread(plain.run, ["mkdir", folder])
            return await milliseconds_of(lambda: plain.unpack(folder, archive))

        return await interleaved(SEEDINGS, ours, floor, ours_a_round=OPENINGS_A_SEEDING)


async def _change_lists(place: Bench, snapshot: BlobId) -> Samples:
    async with place.sandbox(snapshot) as ours_in, place.sandbox(snapshot) as git_in:
        rounds = itertools.count()

        async def ours() -> float:
            await _edit(ours_in, next(rounds))
            return await milliseconds(_take_bundle(ours_in))

        async def floor() -> float:
            await _edit(git_in, next(rounds))
            return await milliseconds(_list_with_git(git_in))

        return await interleaved(CHANGE_LISTS, ours, floor)


async def _edit(sandbox: Sandbox, number: int) -> None:
    made = edits(number)
    for path, content in made.written.items():
        await sandbox.write(f"{WORKSPACE}/{path}", content)
    for path in made.deleted:
        await sandbox.run(Command(argv=["rm", "-f", path]))


async def _take_bundle(sandbox: Sandbox) -> None:
    with await sandbox.changes() as file, ChangeBundle.open(file) as bundle:
        assert len(bundle.changes.files) >= EDITED + ADDED + DELETED


async def _list_with_git(sandbox: Sandbox) -> None:
    assert (await sandbox.run(Command(argv=LIST_CHANGES))).exit_code == 0


SECTION = Section(benchmarks=(SEED, CHANGES), run=run)
