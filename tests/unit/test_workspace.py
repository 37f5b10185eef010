import asyncio
import contextlib
import os
import tarfile
import time
from pathlib import Path

import pytest

from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.orchestrator.workspace.workspace import Workspace, WorkspaceUnusable
from tests.bundles import tree_of
from tests.repositories import git


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture
def blobs(tmp_path):
    return BlobStore(str(tmp_path / "blobs"))


async def members(blobs: BlobStore, blob_id: str) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(await blobs.fetch(blob_id)) as archive:
        return {member.name: member for member in archive}


async def names(root: Path, blobs: BlobStore) -> set[str]:
    return set(await members(blobs, await Workspace(root).snapshot(blobs)))


async def test_a_snapshot_unpacks_to_the_tree(root, blobs, tmp_path):
    (root / "d/empty").mkdir(parents=True)
    (root / "d/run").write_bytes(b"#!/bin/sh\n")
    (root / "d/run").chmod(0o750)
    (root / "link").symlink_to("d/run")
    (root / "dangling").symlink_to("../out/side")
    (root / ("long" * 40)).write_bytes(os.urandom(100_000))
    (root / 'odd\n"name" ü').write_bytes(b"")

    blob_id = await Workspace(root).snapshot(blobs)

    with tarfile.open(await blobs.fetch(blob_id)) as archive:
        archive.extraction_filter = lambda member, _path: (
            member
        )  # Python 3.11.2 has no other name for it
        archive.extractall(tmp_path / "copy")  # noqa: S202 - our own archive
    assert tree_of(tmp_path / "copy") == tree_of(root)


async def test_equal_trees_are_one_blob_whoever_made_them_and_when(root, blobs, tmp_path):
    (root / "a").write_bytes(b"1")
    (root / "b").mkdir()
    copy = tmp_path / "copy"
    (copy / "b").mkdir(parents=True)
    (copy / "a").write_bytes(b"1")
    os.utime(copy / "a", (1, 1))
    if os.geteuid() == 0:
        os.chown(copy / "a", 1234, 1234)

    assert await Workspace(root).snapshot(blobs) == await Workspace(copy).snapshot(blobs)


async def test_a_name_that_is_not_utf8_travels(root, blobs):
    (root / os.fsdecode(b"caf\xe9")).write_bytes(b"1")

    assert os.fsencode((await names(root, blobs)).pop()) == b"caf\xe9"


async def test_what_git_ignores_stays_out_and_what_it_tracks_comes_along(root, blobs):
    git(root, "init", "-q")
    (root / ".gitignore").write_text(".env\nbuild/\n*.log\n")
    for name in (".env", "build/x", "kept.log", "new", "sub/deep.log", "sub/code"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(name)
    (root / "empty").mkdir()
    git(root, "add", "-f", "kept.log")

    found = await names(root, blobs)

    assert {name for name in found if not name.startswith(".git/")} == {
        ".git", ".gitignore", "kept.log", "new", "sub", "sub/code", "empty",
    }  # fmt: skip
    assert ".git/HEAD" in found


async def test_an_ignore_rule_that_is_no_utf8_counts(root, blobs):
    git(root, "init", "-q")
    (root / ".gitignore").write_bytes(b"# caf\xe9\nleft\xe9*\n")
    for name in (b"left\xe9.txt", b"left", b"left\xc3\xa9", b"sub\xe9/left\xe9", b"sub\xe9/x"):
        path = root / os.fsdecode(name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"1")

    found = {os.fsencode(name) for name in await names(root, blobs)}

    assert {name for name in found if not name.startswith(b".git")} == {
        *(b"left", b"left\xc3\xa9", b"sub\xe9", b"sub\xe9/x"),
    }


async def test_a_nested_repository_comes_along_whole(root, blobs):
    git(root, "init", "-q")
    (root / "nested").mkdir()
    git(root / "nested", "init", "-q")
    (root / "nested/file").write_text("1")

    assert {"nested/file", "nested/.git/HEAD"} <= await names(root, blobs)


async def test_locks_of_running_git_commands_stay_out(root, blobs):
    git(root, "init", "-q")
    (root / ".git/index.lock").touch()
    (root / "poetry.lock").touch()

    found = await names(root, blobs)

    assert ".git/index.lock" not in found
    assert "poetry.lock" in found


async def test_a_repository_cannot_run_a_program_of_its_own(root, blobs, tmp_path):
    git(root, "init", "-q")
    trap = f"#!/bin/sh\ntouch {tmp_path}/sprung\n"
    for hook in ("post-index-change", "pre-commit"):
        (root / ".git/hooks" / hook).write_text(trap)
        (root / ".git/hooks" / hook).chmod(0o755)
    (tmp_path / "trap").write_text(trap)
    (tmp_path / "trap").chmod(0o755)
    git(root, "config", "core.fsmonitor", str(tmp_path / "trap"))

    await Workspace(root).snapshot(blobs)

    assert not (tmp_path / "sprung").exists()


async def test_a_repository_that_git_cannot_read_is_refused(root, blobs):
    git(root, "init", "-q")
    (root / ".git/config").write_text("[broken")
    (root / ".env").write_text("secret")

    with pytest.raises(WorkspaceUnusable, match="ignores"):
        await Workspace(root).snapshot(blobs)


async def test_by_products_stay_out_where_no_git_says_what_to_ignore(root, blobs):
    for name in (
        "code.py",
        "code.pyc",
        "__pycache__/x",
        "sub/node_modules/x",
        ".venv/x",
        ".mypy_cache/x",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()

    assert await names(root, blobs) == {"code.py", "sub"}


async def test_special_files_are_left_out_and_told(root, blobs):
    os.mkfifo(root / "pipe")
    (root / "file").touch()
    workspace = Workspace(root)

    blob_id = await workspace.snapshot(blobs)

    assert set(await members(blobs, blob_id)) == {"file"}
    assert [file.path for file in workspace.skipped] == ["pipe"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
async def test_unreadable_files_are_left_out_and_told(root, blobs):
    (root / "file").touch(mode=0)
    (root / "folder").mkdir(mode=0)
    workspace = Workspace(root)

    await workspace.snapshot(blobs)

    assert [file.path for file in workspace.skipped] == ["folder", "file"]


async def test_links_are_carried_and_not_followed(root, blobs, tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("1")
    (root / "link").symlink_to(tmp_path / "secret")

    found = await members(blobs, await Workspace(root).snapshot(blobs))

    assert list(found) == ["link"]
    assert found["link"].issym()


async def test_set_user_id_bits_do_not_travel(root, blobs):
    (root / "a").touch()
    (root / "a").chmod(0o4755)

    found = await members(blobs, await Workspace(root).snapshot(blobs))

    assert found["a"].mode == 0o755


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "a").write_bytes(b"2"),
        lambda root: (root / "a").chmod(0o600),
        lambda root: (root / "new").mkdir(),
        lambda root: (root / "a").unlink(),
        lambda root: (root / "a").rename(root / "b"),
    ],
    ids=["content", "mode", "folder", "removed", "renamed"],
)
async def test_a_change_right_after_a_snapshot_is_in_the_next(root, blobs, change):
    (root / "a").write_bytes(b"1")
    workspace = Workspace(root)
    first = await workspace.snapshot(blobs)
    before = tree_of(root)

    change(root)
    second = await workspace.snapshot(blobs)

    assert tree_of(root) != before
    assert second != first
    assert second == await Workspace(root).snapshot(blobs)


async def test_changes_in_quick_succession_are_never_missed(root, blobs):
    workspace = Workspace(root)
    seen = set()
    for number in range(20):
        content = b"%02d" % number
        (root / "a").write_bytes(content)
        blob_id = await workspace.snapshot(blobs)
        with tarfile.open(await blobs.fetch(blob_id)) as archive:
            assert archive.extractfile("a").read() == content
        seen.add(blob_id)
    assert len(seen) == 20


async def test_many_snapshots_at_once_read_the_tree_twice_at_most(root, blobs, monkeypatch):
    (root / "a").write_bytes(b"1")
    workspace = Workspace(root)
    scans = []
    real_scan = workspace._scan
    monkeypatch.setattr(
        workspace,
        "_scan",
        lambda *given: scans.append(1) or time.sleep(0.05) or real_scan(*given),
    )

    ids = await asyncio.gather(*(workspace.snapshot(blobs) for _ in range(50)))

    assert len(set(ids)) == 1
    assert len(scans) <= 3  # one before and one while writing, and one for those who came meanwhile


async def test_a_blob_that_was_deleted_is_stored_again(root, blobs):
    (root / "a").touch()
    workspace = Workspace(root)
    blob_id = await workspace.snapshot(blobs)
    await blobs.delete(blob_id)

    assert await workspace.snapshot(blobs) == blob_id
    assert await blobs.exists(blob_id)


async def test_too_large_a_tree_is_refused_with_what_to_do(root, blobs):
    (root / "a").write_bytes(b"x" * 2000)

    with pytest.raises(
        WorkspaceUnusable, match=r"1,000 bytes.*\.gitignore.*FANOUT_LIMITS__SNAPSHOT_BYTES"
    ):
        await Workspace(root, max_snapshot_bytes=1000).snapshot(blobs)


@pytest.mark.parametrize("name", ["nowhere", "file"])
async def test_what_is_no_folder_is_refused(root, blobs, name):
    (root / "file").touch()

    with pytest.raises(WorkspaceUnusable, match="name a folder that exists"):
        await Workspace(root / name).snapshot(blobs)


async def test_a_file_that_goes_during_the_scan_takes_no_other_with_it(root, blobs, monkeypatch):
    for name in ("a", "b", "c", "d"):
        (root / name).write_text(name)
    listed = os.scandir

    @contextlib.contextmanager
    def vanishing(descriptor):
        with listed(descriptor) as entries:
            found = list(entries)
        if len(found) == 4:
            (root / found[1].name).unlink()  # after it was listed, before it is looked at
        yield found

    monkeypatch.setattr("fanout.orchestrator.workspace.snapshots.scan.os.scandir", vanishing)
    found = await members(blobs, await Workspace(root).snapshot(blobs))

    assert len(found) == 3


async def test_files_that_change_while_they_are_read_do_not_break_the_archive(root, blobs):
    for number in range(200):
        (root / f"{number:03}").write_bytes(b"x" * 1000)
    (root / "log").write_bytes(b"x" * 9_000_000)
    stop = False

    def disturb() -> None:
        while not stop:
            for number in range(200):
                path = root / f"{number:03}"
                path.unlink(missing_ok=True)
                path.write_bytes(os.urandom(number * 10))
            with (root / "log").open("ab") as log:
                log.write(b"x" * 1000)

    disturbing = asyncio.ensure_future(asyncio.to_thread(disturb))
    try:
        for _ in range(5):
            blob_id = await Workspace(root).snapshot(blobs)
            with tarfile.open(await blobs.fetch(blob_id)) as archive:
                sizes = {member.name: len(archive.extractfile(member).read()) for member in archive}
            assert sizes["log"] >= 9_000_000
    finally:
        stop = True
        await disturbing


async def test_the_archive_says_nothing_of_its_maker(root, blobs):
    (root / "a").touch()

    found = await members(blobs, await Workspace(root).snapshot(blobs))

    member = found["a"]
    assert (member.uid, member.gid, member.uname, member.gname, member.mtime) == (
        0,
        0,
        "",
        "",
        315_619_200,
    )
