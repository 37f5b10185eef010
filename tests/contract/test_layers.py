"""What a job starts from when it has layers: on each provider, what the jobs before it left."""

from __future__ import annotations

import asyncio
import hashlib
import io
import secrets
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.orchestrator.jobs.spec import MAX_LAYERS, Limits, StartFiles, new_job_id
from fanout.orchestrator.workspace import layers
from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.errors import SnapshotUnusable
from fanout.workers.sandbox.local.provider import LocalProvider
from fanout.workers.sandbox.protocol import Command, Sandbox, SandboxProvider, SandboxSpec, nobody
from tests.bundles import BundleBuilder
from tests.conftest import missing

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

MIB = 1024**2
LIMITS = Limits(
    timeout_seconds=60,
    cpus=1,
    memory_bytes=512 * MIB,
    pids=200,
    disk_bytes=64 * MIB,
    network="none",
)
LIST = (
    "find . -mindepth 1 -not -type d -printf '%P %y %m %l\\n' -o -type d -printf '%P d %m\\n'"
    " | grep -v __pycache__ | sort; find . -type f -exec sha256sum {} + | sort"
)


class Place:
    """A provider, and a blob store whose reads are counted."""

    def __init__(self, folder: Path) -> None:
        self.blobs = BlobStore(str(folder))
        self.read: list[str] = []
        self.provider: SandboxProvider

    async def fetch(self, blob: str) -> Path:
        self.read.append(blob)
        return await self.blobs.fetch(blob)

    async def job(
        self, start: StartFiles, use: Callable[[Sandbox], Any], *, job: str = ""
    ) -> StartFiles:
        """Use a sandbox; return what a child of its job starts from."""
        spec = SandboxSpec(
            job_id=job or new_job_id(),
            attempt=1,
            image="fanout/python",
            limits=LIMITS,
            **start.update(),
        )
        async with self.provider.open(spec) as sandbox:
            await use(sandbox)
            with await sandbox.changes() as bundle:
                after = await layers.start_after(self.blobs, start, bundle)
        await self.provider.discard(spec.job_id)
        return after

    async def ran(self, start: StartFiles, script: str) -> StartFiles:
        async def run(sandbox: Sandbox) -> None:
            await output(sandbox, script)

        return await self.job(start, run)

    async def seen(self, start: StartFiles, script: str = LIST) -> str:
        """What a job that starts from there finds; it has changed nothing by that."""
        found = ""

        async def look(sandbox: Sandbox) -> None:
            nonlocal found
            found = await output(sandbox, script)

        assert await self.job(start, look) == start
        return found


async def output(sandbox: Sandbox, script: str) -> str:
    done = await sandbox.run(Command(argv=f"set -e\n{script}"))
    assert done.exit_code == 0, done.output
    return done.output.decode()


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[
        "local",
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("watch", marks=[pytest.mark.docker, pytest.mark.slow]),
        pytest.param("trees", marks=[pytest.mark.docker, pytest.mark.slow]),
    ],
)
async def layered(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Place]:
    """Docker with stacked layers, with whole trees below an overlay, and without overlays."""
    made = Place(tmp_path_factory.mktemp("blobs"))
    installation = f"contract-{secrets.token_hex(4)}"
    if request.param == "local":
        made.provider = LocalProvider(made.fetch, tmp_path_factory.mktemp("local"), installation)
    else:
        quota: Any = "watch" if request.param == "watch" else "auto"
        provider = DockerProvider(
            made.fetch, installation=installation, worker="contract", disk_quota=quota
        )
        provider._starts._overlay = request.param != "trees"
        try:
            await provider.probe("fanout/python")
        except SandboxFailure as failure:
            missing(str(failure))
        made.provider = provider
    yield made
    await made.provider.reap(nobody)
    await made.provider.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def base(layered: Place) -> StartFiles:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content, mode in (
            ("kept.txt", b"kept", 0o644),
            ("edited.txt", b"one\ntwo\n", 0o644),
            ("deleted.txt", b"away", 0o644),
            ("renamed.txt", b"a long enough content to be found again\n" * 5, 0o644),
            ("mode.sh", b"#!/bin/sh\n", 0o644),
            ("private/inner/note", b"note", 0o600),
            ("private/other", b"other", 0o644),
            ("folder_to_file/a", b"a", 0o644),
            ("folder_to_file/deep/b", b"b", 0o644),
            ("file_to_folder", b"file", 0o644),
            ("emptied/only", b"only", 0o644),
            ("emptied_deep/a/b/only", b"only", 0o644),
            ("again", b"first", 0o644),
        ):
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(content), mode
            archive.addfile(member, io.BytesIO(content))
        for path, mode in (("empty", 0o755), ("empty_to_full", 0o750), ("private", 0o700)):
            member = tarfile.TarInfo(path)
            member.type, member.mode = tarfile.DIRTYPE, mode
            archive.addfile(member)
        for path, target in (("link", "kept.txt"), ("link_to_folder", "private")):
            member = tarfile.TarInfo(path)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return StartFiles(await layered.blobs.put(buffer.getvalue()))


FIRST = """
echo three >> edited.txt; rm deleted.txt; mv renamed.txt moved.txt; chmod 755 mode.sh
echo more > private/inner/more; rm -r folder_to_file; echo now > folder_to_file
rm file_to_folder; mkdir -p file_to_folder/in; echo x > file_to_folder/in/x
rm again; ln -sfn edited.txt link; rm link_to_folder; mkdir link_to_folder; echo y > link_to_folder/y
echo full > empty_to_full/new; mkdir -p new/empty; echo z > new/z; ln -s /etc/passwd out
rm -r emptied_deep
"""
SECOND = """
rm folder_to_file; mkdir folder_to_file; echo back > folder_to_file/c
rm -r file_to_folder; echo file > file_to_folder
echo again > again; rm moved.txt; mv mode.sh private/mode.sh; rm -r link_to_folder
ln -s new link_to_folder; rmdir new/empty empty; chmod 600 kept.txt
mkdir -p emptied_deep/a; echo other > emptied_deep/a/file
"""
THIRD = """
rm again; echo third > deleted.txt; rm -r new; rm link_to_folder; rm -r private/inner
chmod 644 kept.txt; echo tail >> edited.txt; mkdir empty
"""


@pytest.mark.slow
async def test_a_chain_of_layers_is_what_each_job_left(layered: Place, base: StartFiles) -> None:
    start = base
    for script in (FIRST, SECOND, THIRD):
        left = ""

        async def work(sandbox: Sandbox, script: str = script) -> None:
            nonlocal left
            await output(sandbox, script)
            left = await output(sandbox, LIST)

        start = await layered.job(start, work)
        assert await layered.seen(start) == left
    assert len(start.layers) == 3
    assert start.snapshot == base.snapshot


@pytest.mark.slow
async def test_a_folder_that_loses_its_last_file_goes_with_it(
    layered: Place, base: StartFiles
) -> None:
    gone = await layered.ran(base, "rm emptied/only emptied_deep/a/b/only")
    assert await layered.seen(gone, "ls -d emptied* || true; ls -d empty") == (
        "ls: cannot access 'emptied*': No such file or directory\nempty\n"
    )
    back = await layered.ran(gone, "mkdir emptied; echo back > emptied/only")
    assert await layered.seen(back, "cat emptied/only; ls emptied") == "back\nonly\n"


async def test_changes_are_collected_against_the_whole_chain(
    layered: Place, base: StartFiles
) -> None:
    start = await layered.ran(await layered.ran(base, FIRST), SECOND)
    bundle: list[Any] = []

    async def work(sandbox: Sandbox) -> None:
        await output(
            sandbox,
            "echo file > file_to_folder; rm again; echo edit >> edited.txt; touch kept.txt;"
            " chmod 711 private; mv moved.txt x 2> /dev/null || true; echo n > deleted.txt;"
            " rm folder_to_file/c; rmdir folder_to_file; echo f > folder_to_file",
        )
        file = await sandbox.changes()

        def entries() -> list[tuple[str, str]]:
            with file, ChangeBundle.open(file) as opened:
                return [(one.path, one.change.value) for one in opened.changes.files]

        bundle.extend(await asyncio.to_thread(entries))

    await layered.job(start, work)
    assert bundle == [
        ("again", "deleted"),
        ("deleted.txt", "added"),
        ("edited.txt", "modified"),
        ("folder_to_file", "added"),
        ("folder_to_file/c", "deleted"),
    ]


async def test_renamed_folders_are_the_same_in_every_later_layer(
    layered: Place, base: StartFiles
) -> None:
    first = await layered.ran(
        base, "mv private secret; echo more >> secret/other; mv emptied empty/"
    )
    second = await layered.ran(
        first, "mv secret/inner in; mv empty full; mkdir secret/new; mv in secret/inner"
    )
    third = await layered.ran(second, "mv secret private; rm -r full; mv emptied_deep full")

    look = "cat secret/inner/note secret/other empty/emptied/only; test ! -e private"
    assert await layered.seen(first, look) == "noteothermore\nonly"
    assert await layered.seen(second, "cd secret; cat inner/note; ls; ls ../full") == (
        "noteinner\nnew\nother\nemptied\n"
    )
    look = "cat private/inner/note full/a/b/only; test ! -e secret; test ! -e empty"
    assert await layered.seen(third, look) == "noteonly"


async def test_names_that_are_no_utf_8_are_in_layers(layered: Place) -> None:
    latin = "$(printf 'caf\\351')"
    first = await layered.ran(
        StartFiles(), f"mkdir {latin}; echo one > {latin}/{latin}; echo 1 > gone"
    )
    second = await layered.ran(first, f"echo two >> {latin}/{latin}; mv gone {latin}/gone")

    assert len(second.layers) == 2
    assert await layered.seen(second, f"cat {latin}/{latin}; ls -b {latin}; ls -b") == (
        "one\ntwo\ncaf\\351\ngone\ncaf\\351\n"
    )


async def test_layers_without_a_snapshot_and_without_changes(layered: Place) -> None:
    first = await layered.ran(StartFiles(), "mkdir -p a/b; echo one > a/b/c; mkdir -m 700 empty")
    assert first.snapshot is None
    assert len(first.layers) == 1
    assert await layered.ran(first, "cat a/b/c > /dev/null") == first
    assert await layered.seen(first, "stat -c '%n %a' a a/b empty") == "a 755\na/b 755\nempty 700\n"


@pytest.mark.slow
async def test_sixty_waits_do_not_grow_the_layers_and_never_read_the_snapshot_again(
    layered: Place, base: StartFiles
) -> None:
    await layered.seen(base)
    starts: list[StartFiles] = []

    async def wait_sixty_times(sandbox: Sandbox) -> None:
        for number in range(60):
            await sandbox.write_bytes("/workspace/edited.txt", b"x" * number)
            with await sandbox.changes() as bundle:
                starts.append(await layers.start_after(layered.blobs, base, bundle))

    layered.read.clear()
    await layered.job(base, wait_sixty_times)
    for start in starts[-3:]:
        await layered.seen(start)
    assert {len(start.layers) for start in starts} == {1}
    assert base.snapshot not in layered.read
    assert layered.read == [start.layers[0] for start in starts[-3:]]


@pytest.mark.slow
async def test_continuations_go_on_past_the_fold(layered: Place, base: StartFiles) -> None:
    start, longest = base, 0
    for number in range(MAX_LAYERS + 3):
        script = f"echo {number} >> edited.txt; mkdir d{number}; echo {number} > d{number}/f"
        if number:
            script += f"; rm -r d{number - 1}; echo {number} > e{number}"
        start = await layered.ran(start, script)
        longest = max(longest, len(start.layers))
    assert longest == MAX_LAYERS
    assert len(start.layers) == 3
    assert (await layered.seen(start, "tail -n 1 edited.txt; ls -d d*/f e?")).split() == [
        str(MAX_LAYERS + 2),
        f"d{MAX_LAYERS + 2}/f",
        *(f"e{number}" for number in range(1, 10)),
    ]


HOSTILE = [
    *("../out", "/out", "a/../../out", "a//b", "./a", "a/./b", "", ".", "nul\0"),
    "a/" * 1990 + "deep",
]


@pytest.mark.parametrize("kind", ["written", "removed"])
async def test_a_hostile_layer_is_refused(layered: Place, base: StartFiles, kind: str) -> None:
    for path in HOSTILE:
        builder = BundleBuilder()
        file = builder.file(b"evil")
        bundle = builder.add(path, file) if kind == "written" else builder.delete(path, file)
        layer = await layered.blobs.put_file(bundle.build())
        with pytest.raises(SnapshotUnusable):
            await layered.seen(base._replace(layers=(layer,)))


@pytest.mark.slow
async def test_the_deepest_path_that_is_collected_arrives(layered: Place) -> None:
    path = "a/" * 256 + "deep"
    start = await layered.ran(StartFiles(), f"mkdir -p {path[:-5]}; echo deep > {path}")
    assert len(start.layers) == 1
    assert await layered.seen(start, f"cat {path}") == "deep\n"
    without = await layered.ran(start, f"rm {path}")
    assert await layered.seen(without, "ls") == ""


async def test_a_layer_does_not_go_through_a_link(layered: Place) -> None:
    start = await layered.ran(StartFiles(), "mkdir t; echo v > t/victim; ln -s t link")
    builder = BundleBuilder()
    file = builder.file(b"v\n")
    bundle = builder.delete("link/victim", file).add("link/new", file).build()
    layer = await layered.blobs.put_file(bundle)
    through = start._replace(layers=(*start.layers, layer))
    assert await layered.seen(through, "find . -mindepth 1 | sort; cat t/victim") == (
        "./link\n./link/new\n./t\n./t/victim\nv\n"
    )


async def test_a_damaged_layer_is_refused_and_a_missing_one_says_so(
    layered: Place, base: StartFiles
) -> None:
    layer = await layered.blobs.put(b"no bundle" + hashlib.sha256(b"x").digest())
    with pytest.raises(SnapshotUnusable, match="layer"):
        await layered.seen(base._replace(layers=(layer,)))
