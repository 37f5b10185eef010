"""A workspace of 5,000 files: filling a sandbox with it, and finding what a job changed in it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import tarfile
from collections.abc import AsyncIterator, Collection, Sequence

from fanout.orchestrator.git.process import run_git
from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.jobs.spec import BlobId, StartFiles, new_job_id
from fanout.orchestrator.workspace.workspace import Workspace
from fanout.workers.sandbox.docker import container_config
from fanout.workers.sandbox.protocol import WORKSPACE, Command, Sandbox
from tests.benchmarks.engine import LIMITS, Bench, bench
from tests.benchmarks.measure import (
    Benchmark,
    Sample,
    Samples,
    Section,
    interleaved,
    milliseconds,
    milliseconds_of,
)
from tests.benchmarks.source_tree import (
    ADDED,
    DELETED,
    EDITED,
    LIST_CHANGES,
    edits,
    path_of,
    write_tree,
)

SEEDINGS, PREPARATIONS_A_SEEDING = 4, 10
FIRST_SEEDINGS = 3
OPENINGS = 15
CHANGE_LISTS = 15
AT_ONCE, ROUNDS_AT_ONCE = 200, 3
PATCHES = 15

SEED = Benchmark(
    name="seed",
    title="seed 5,000 files, snapshot on the host",
    unit="ms",
    floor="put_archive",
    target_ratio=1 / 100,
)
OPEN = Benchmark(
    name="seed-open",
    title="open a sandbox with 5,000 files",
    unit="ms",
    floor="open an empty one",
    target_ratio=1.1,
)
FIRST_SEED = Benchmark(
    name="seed-first",
    title="seed 5,000 files, snapshot new to host",
    unit="ms",
    floor="put_archive",
    target=400,
)
EDITED_SEED = Benchmark(
    name="seed-edit",
    title="seed 5,000 files, one edited since",
    unit="ms",
    floor="put_archive",
)
CHANGES = Benchmark(
    name="changes",
    title="bundle of 40 changes in 5,000 files",
    unit="ms",
    floor="git add, git diff --binary",
    target=30,  # what a bundle may add to a job's end; the ratio to git stands beside it
)
MANY_CHANGES = Benchmark(
    name="bundle-200",
    title="200 bundles of 40 changes at once",
    unit="ms",
    floor="one bundle",
    target=5_000,
)
PATCH = Benchmark(
    name="patch",
    title="patch of 40 changes, made when it is asked for",
    unit="ms",
    floor="a Git process that does nothing",
    target=50,
)


async def run(wanted: Collection[str]) -> AsyncIterator[tuple[Benchmark, Samples]]:
    """Measure on one tree; the first use of its snapshot, which unpacks it, is a warm-up."""
    measures = {
        SEED: _seedings,
        OPEN: _openings,
        FIRST_SEED: _first_seedings,
        EDITED_SEED: _edited_seedings,
        CHANGES: _change_lists,
        MANY_CHANGES: _many_change_lists,
        PATCH: _patches,
    }
    async with bench() as place:
        tree = place.folder / "tree"
        tree.mkdir()
        write_tree(
            tree
        )  # not in a thread, which would go on while an interrupted run removes the folder
        snapshot = await place.snapshot(tree)
        for benchmark, measure in measures.items():
            if benchmark.name in wanted:
                yield benchmark, await measure(place, snapshot)


async def _seedings(place: Bench, snapshot: BlobId) -> Samples:
    """What the steward does for a job's workspace; mounting it is in `seed-open`."""
    async with _put_archive(place, snapshot) as floor:
        return await interleaved(
            SEEDINGS, lambda: _prepare(place, snapshot), floor, ours_a_round=PREPARATIONS_A_SEEDING
        )


async def _first_seedings(place: Bench, snapshot: BlobId) -> Samples:
    numbers = itertools.count()

    async def ours() -> float:
        return await _prepare(place, await _another(place, snapshot, next(numbers)))

    async with _put_archive(place, snapshot) as floor:
        return await interleaved(FIRST_SEEDINGS, ours, floor)


async def _edited_seedings(place: Bench, snapshot: BlobId) -> Samples:
    workspace = Workspace(place.folder / "tree")
    numbers = itertools.count()
    await workspace.start_files(place.blobs)

    async def ours() -> float:
        edited = workspace.root / path_of(7)
        await asyncio.to_thread(edited.write_text, f"edited = {next(numbers)}\n")
        start = await workspace.start_files(place.blobs)
        return await _prepare(place, snapshot, start.layers)

    async with _put_archive(place, snapshot) as floor:
        return await interleaved(FIRST_SEEDINGS, ours, floor)


async def _prepare(place: Bench, snapshot: BlobId, layers: Sequence[BlobId] = ()) -> float:
    steward, job = await place.provider._steward(), new_job_id()
    try:
        return await milliseconds(
            steward.prepare(
                job,
                snapshot,
                layers,
                overlay=True,
                disk_bytes=LIMITS.disk_bytes,
                first_uid=container_config.FIRST_UID,
            )
        )
    finally:
        await steward.delete(job)


async def _another(place: Bench, snapshot: BlobId, number: int) -> BlobId:
    """A snapshot of the same tree and one file more."""
    copy = place.folder / "copy.tar"
    await asyncio.to_thread(shutil.copyfile, await place.blobs.fetch(snapshot), copy)
    with tarfile.open(copy, "a:") as archive:
        archive.addfile(tarfile.TarInfo(f"another-{number}"))
    with copy.open("rb") as file:
        return await place.blobs.put_file(file)


@contextlib.asynccontextmanager
async def _put_archive(place: Bench, snapshot: BlobId) -> AsyncIterator[Sample]:
    """The floor: the same archive into a folder of a running container, which is there before."""
    archive = await asyncio.to_thread((await place.blobs.fetch(snapshot)).read_bytes)
    numbers = itertools.count()
    async with place.plain() as plain:

        async def floor() -> float:
            folder = f"/tmp/tree-{next(numbers)}"
            await asyncio.to_thread(plain.run, ["mkdir", folder])
            return await milliseconds_of(lambda: plain.unpack(folder, archive))

        yield floor


async def _openings(place: Bench, snapshot: BlobId) -> Samples:
    return await interleaved(
        OPENINGS,
        lambda: place.opened(snapshot, lambda _: asyncio.sleep(0)),
        lambda: place.opened(None, lambda _: asyncio.sleep(0)),
    )


async def _change_lists(place: Bench, snapshot: BlobId) -> Samples:
    start = StartFiles(snapshot)
    async with place.sandbox(start) as ours_in, place.sandbox(start) as git_in:
        rounds = itertools.count()

        async def ours() -> float:
            await _edit(ours_in, next(rounds))
            return await milliseconds(_take_bundle(ours_in))

        async def floor() -> float:
            await _edit(git_in, next(rounds))
            return await milliseconds(_list_with_git(git_in))

        return await interleaved(CHANGE_LISTS, ours, floor)


async def _many_change_lists(place: Bench, snapshot: BlobId) -> Samples:
    """Of one sandbox: the steward has no part of its work in common."""
    async with place.sandbox(StartFiles(snapshot)) as sandbox:
        await _edit(sandbox, 0)
        return await interleaved(
            ROUNDS_AT_ONCE,
            lambda: milliseconds(asyncio.gather(*(_take_bundle(sandbox) for _ in range(AT_ONCE)))),
            lambda: milliseconds(_take_bundle(sandbox)),
        )


async def _patches(place: Bench, snapshot: BlobId) -> Samples:
    async with place.sandbox(StartFiles(snapshot)) as sandbox:
        await _edit(sandbox, 0)
        with await sandbox.changes() as file, ChangeBundle.open(file) as bundle:
            return await interleaved(
                PATCHES,
                lambda: milliseconds(asyncio.to_thread(bundle.patch)),
                lambda: milliseconds(asyncio.to_thread(run_git, ["version"], folder=place.folder)),
            )


async def _edit(sandbox: Sandbox, number: int) -> None:
    made = edits(number)
    for path, content in made.written.items():
        await sandbox.write_bytes(f"{WORKSPACE}/{path}", content)
    for path in made.deleted:
        await sandbox.run(Command(argv=["rm", "-f", path]))


async def _take_bundle(sandbox: Sandbox) -> None:
    with await sandbox.changes() as file, ChangeBundle.open(file) as bundle:
        assert len(bundle.changes.files) >= EDITED + ADDED + DELETED


async def _list_with_git(sandbox: Sandbox) -> None:
    assert (await sandbox.run(Command(argv=LIST_CHANGES))).exit_code == 0


SECTION = Section(
    benchmarks=(SEED, OPEN, FIRST_SEED, EDITED_SEED, CHANGES, MANY_CHANGES, PATCH), run=run
)
