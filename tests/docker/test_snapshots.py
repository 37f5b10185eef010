from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import Callable
from typing import Any

import pytest

from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.errors import SnapshotUnusable
from fanout.workers.sandbox.protocol import Command
from tests.docker.conftest import MIB, SnapshotFolder, make_sandbox_spec

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]


def archive_of(*members: tuple[str, dict[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, fields in members:
            member = tarfile.TarInfo(name)
            for field, value in fields.items():
                setattr(member, field, value)
            archive.addfile(member, io.BytesIO(b"x" * member.size))
    return buffer.getvalue()


async def test_a_snapshot_arrives_with_its_modes_links_and_odd_names(
    provider: DockerProvider, snapshots: SnapshotFolder
) -> None:
    snapshot = snapshots.add_archive(
        archive_of(
            ("run.sh", {"size": 3, "mode": 0o755}),
            ("deep/er/file", {"size": 2, "mode": 0o600}),
            ("empty", {"type": tarfile.DIRTYPE, "mode": 0o755}),
            ("link", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
            ("with\nnewline 'and' \"quotes\"", {"size": 1}),
        )
    )
    async with provider.open(make_sandbox_spec(snapshot=snapshot)) as sandbox:
        entries = {entry.path: entry for entry in await sandbox.list("/workspace")}
        owner = await sandbox.run(
            Command(argv="id -u; stat -c %u:%g . deep deep/er deep/er/file link | sort -u")
        )

        assert entries["/workspace/run.sh"].mode & 0o777 == 0o755
        assert entries["/workspace/empty"].kind == "directory"
        assert entries["/workspace/link"].kind == "symlink"
        assert "/workspace/with\nnewline 'and' \"quotes\"" in entries
        user, *owners = owner.output.decode().split()
        assert owners == [f"{user}:10001"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([("../out", {"size": 1})], "outside its root"),
        ([("/tmp/out", {"size": 1})], "outside its root"),
        ([("a/../../out", {"size": 1})], "outside its root"),
        ([("device", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3})], "not a file"),
        ([("pipe", {"type": tarfile.FIFOTYPE})], "not a file"),
        ([("hard", {"type": tarfile.LNKTYPE, "linkname": "/etc/shadow"})], "not a file"),
        (
            [
                ("up", {"type": tarfile.SYMTYPE, "linkname": "/store"}),
                ("up/evil", {"type": tarfile.SYMTYPE, "linkname": "/"}),
            ],
            "symlink",
        ),
        (
            [("up", {"type": tarfile.SYMTYPE, "linkname": "/store"}), ("up/evil", {"size": 1})],
            "two members",
        ),
        ([("twice", {"size": 1}), ("twice", {"size": 2})], "two members"),
    ],
)
async def test_an_archive_that_would_leave_its_root_is_refused(
    provider: DockerProvider, snapshots: SnapshotFolder, members: list[Any], why: str
) -> None:
    snapshot = snapshots.add_archive(archive_of(*members))
    with pytest.raises(SnapshotUnusable, match=why):
        async with provider.open(make_sandbox_spec(snapshot=snapshot)):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("cut", [100, 700, 5000])
async def test_a_damaged_archive_is_refused(
    provider: DockerProvider, snapshots: SnapshotFolder, cut: int
) -> None:
    whole = archive_of(("a", {"size": 10}), ("b", {"size": 20_000}))
    with pytest.raises(SnapshotUnusable):
        async with provider.open(make_sandbox_spec(snapshot=snapshots.add_archive(whole[:cut]))):
            pass


@pytest.mark.representative
@pytest.mark.slow
async def test_a_snapshot_is_sent_once_and_never_changed_by_a_job(
    make_provider: Callable[..., DockerProvider], snapshots: SnapshotFolder
) -> None:
    snapshot = snapshots.add({f"folder{n % 20}/file{n}": b"content" for n in range(5000)})
    first, second = make_provider(), make_provider()
    async with first.open(make_sandbox_spec(snapshot=snapshot)) as sandbox:
        await sandbox.run(
            Command(argv="rm -rf folder1; for f in folder2/*; do echo changed > $f; done")
        )
    async with second.open(make_sandbox_spec(snapshot=snapshot)) as sandbox:
        count = await sandbox.run(Command(argv="find . -type f | wc -l; cat folder2/file2"))
    assert count.output == b"5000\ncontent"
    assert snapshots.fetched == [snapshot]


@pytest.mark.slow
async def test_the_least_recently_used_snapshot_goes_first_and_never_one_in_use(
    make_provider: Callable[..., DockerProvider], snapshots: SnapshotFolder
) -> None:
    provider = make_provider(snapshot_cache_bytes=5 * MIB)
    ids = [snapshots.add({"file": bytes([n]) * 2 * MIB}) for n in range(4)]

    async def use(snapshot: str) -> None:
        spec = make_sandbox_spec(snapshot=snapshot)
        async with provider.open(spec):
            pass
        await provider.discard(spec.job_id)

    in_use = make_sandbox_spec(snapshot=ids[0])
    async with provider.open(in_use) as sandbox:
        for snapshot in (ids[1], ids[2], ids[3]):
            await use(snapshot)
        assert (await sandbox.read_bytes("/workspace/file"))[:1] == b"\0"
        await use(ids[3])
        await use(ids[0])
    assert snapshots.fetched == [ids[0], ids[1], ids[2], ids[3]]
    await use(ids[1])
    assert snapshots.fetched[-1] == ids[1]


@pytest.mark.slow
async def test_two_workers_that_unpack_the_same_snapshot_do_not_collide(
    make_provider: Callable[..., DockerProvider], snapshots: SnapshotFolder
) -> None:
    snapshot = snapshots.add({f"f{n}": b"x" * 100 for n in range(500)})
    providers = [make_provider(), make_provider()]

    async def count(provider: DockerProvider) -> bytes:
        async with provider.open(make_sandbox_spec(snapshot=snapshot)) as sandbox:
            return (await sandbox.run(Command(argv="ls | wc -l"))).output

    assert await asyncio.gather(*(count(provider) for provider in providers * 2)) == [b"500\n"] * 4
