"""What jobs start from: an earlier snapshot, and a layer of what was changed in it since."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fanout.orchestrator.cli.terminal import output, waiting
from fanout.orchestrator.jobs.spec import StartFiles
from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.orchestrator.workspace.rooted import READ_FLAGS
from fanout.orchestrator.workspace.snapshots.index import SnapshotIndexes
from fanout.orchestrator.workspace.snapshots.scan import scan
from fanout.orchestrator.workspace.workspace import Workspace
from fanout.workers.sandbox.inside import archives
from fanout.workers.sandbox.inside import snapshots as inside
from fanout.workers.sandbox.layers import Element, element_archive, read_chain
from fanout.workers.sandbox.local.provider import unpack_element
from tests.bundles import tree_of
from tests.repositories import git
from tests.unit.test_layers import PATHS, STATES, State, keep_owner, seen, write_tree

KEY = "ghp_" + "a1" * 18


class Place:
    """A folder, a blob store, and the state folder of one user."""

    def __init__(self, home: Path) -> None:
        self.root, self.home = home / "root", home
        self.indexes = home / "indexes"
        self.blobs = BlobStore(str(home / "blobs"))
        self._merged: Path | None = None
        self._stacked: list[Path] = []

    async def start(self) -> StartFiles:
        """As a process does that has just been started."""
        workspace = Workspace(self.root, indexes=SnapshotIndexes(self.indexes))
        return await workspace.start_files(self.blobs)

    async def unpacked(self, start: StartFiles) -> dict[str, tuple[str, int, bytes]]:
        """What a job finds, which is the same merged and stacked."""
        self._merged, self._stacked = None, []
        for element in read_chain(start.snapshot, start.layers):
            async with element_archive(element, self.blobs.fetch) as archive:
                await asyncio.to_thread(self._unpack, element, archive)
        return await asyncio.to_thread(self._found)

    def _unpack(self, element: Element, archive: Path) -> None:
        below, self._merged = self._merged, Path(tempfile.mkdtemp(dir=self.home)) / "tree"
        unpack_element(element, archive, self._merged, below)
        tree = Path(tempfile.mkdtemp(dir=self.home))
        removed: list[str] = []
        archives.unpack(archive, tree, keep_owner, removed if self._stacked else None)
        if self._stacked:
            inside.stack(tree, removed, self._stacked, keep_owner)
        self._stacked.insert(0, tree)

    def _found(self) -> dict[str, tuple[str, int, bytes]]:
        assert self._merged is not None
        found = tree_of(self._merged)
        assert seen(self._stacked) == found
        return found


@pytest.fixture
def project(tmp_path: Path) -> Place:
    (tmp_path / "root").mkdir()
    return Place(tmp_path)


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STATES, STATES, st.frozensets(st.sampled_from([*PATHS, "kept"]), max_size=3))
@example({"a/b": "one"}, {}, frozenset())
@example({"a/b": "one"}, {"a": "folder"}, frozenset())
@example({"a/b": "one"}, {"a": "link"}, frozenset())
@example({"a": "one"}, {"a": "+x"}, frozenset())
def test_a_job_finds_the_folder_as_it_is_now(
    before: State, after: State, untouched: frozenset[str]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Place(Path(name))
        write_tree(place.root, {**before, "kept": "one"})
        first, then = asyncio.run(place.start()), tree_of(place.root)
        _become(place.root, {**after, "kept": "one"}, untouched)
        second, now = asyncio.run(place.start()), tree_of(place.root)
        assert asyncio.run(place.unpacked(first)) == then
        assert asyncio.run(place.unpacked(second)) == now
        assert (first == second) == (then == now)


def _become(root: Path, state: State, untouched: frozenset[str]) -> None:
    """Write a state over another one, without a touch to some files that are the same in both."""
    wanted = root.with_name("wanted")
    write_tree(wanted, state)
    there, then = tree_of(root), tree_of(wanted)
    same = {path for path in untouched if there.get(path) == then.get(path) != None}  # noqa: E711
    for path in sorted(there, reverse=True):
        if path not in then or there[path][0] != then[path][0]:
            gone = root / path
            gone.rmdir() if there[path][0] == "directory" else gone.unlink()
    for path in sorted(then.keys() - same):
        (root / path).parent.mkdir(exist_ok=True)
        subprocess.run(
            ["cp", "-aT", "--remove-destination", wanted / path, root / path], check=True
        )
    assert tree_of(root) == then


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are opened for a snapshot from here on."""
    names: list[str] = []
    real = os.open

    def noted(path: str, flags: int, *args: int, **more: int) -> int:
        if flags == READ_FLAGS:
            names.append(path)
        return real(path, flags, *args, **more)

    monkeypatch.setattr(os, "open", noted)
    return names


async def test_a_later_process_reads_only_what_has_changed(
    project: Place, opened: list[str]
) -> None:
    for name in "abc":
        (project.root / name).write_text(name)
    first = await project.start()
    assert opened == ["a", "b", "c"]
    assert await project.start() == first
    assert opened == ["a", "b", "c"]

    (project.root / "b").write_text("other")
    second = await project.start()

    assert opened == ["a", "b", "c", "b"]
    assert second.snapshot == first.snapshot
    assert len(second.layers) == 1
    assert await project.unpacked(second) == await asyncio.to_thread(tree_of, project.root)


async def test_a_touched_file_and_one_that_is_as_before_again_make_no_layer(project: Place) -> None:
    (project.root / "a").write_text("1")
    first = await project.start()

    (project.root / "a").touch()
    assert await project.start() == first
    (project.root / "a").write_text("2")
    assert await project.start() != first
    (project.root / "a").write_text("1")
    assert await project.start() == first


async def test_a_file_that_gets_a_credential_is_taken_away(project: Place) -> None:
    (project.root / "a").write_text("1")
    (project.root / "b").write_text("1")
    await project.start()

    (project.root / "b").write_text(KEY)
    start = await project.start()

    assert (await project.unpacked(start)).keys() == {"a"}
    for blob in start.blobs():
        assert KEY.encode() not in await project.blobs.get(blob)
    workspace = Workspace(project.root, indexes=SnapshotIndexes(project.indexes))
    await workspace.start_files(project.blobs)
    assert [file.path for file in workspace.left_at_home] == ["b"]


async def test_what_stays_at_home_is_named_by_a_later_process_too(project: Place) -> None:
    (project.root / "a").write_text(KEY)
    (project.root / ".env").write_text("1")
    await project.start()

    workspace = Workspace(project.root, indexes=SnapshotIndexes(project.indexes))
    await workspace.start_files(project.blobs)

    assert [file.path for file in workspace.left_at_home] == [".env", "a"]


def _ignore(root: Path) -> None:
    (root / ".gitignore").write_text("out\nd\nfree/\n")


def _ignore_nothing(root: Path) -> None:
    (root / ".gitignore").unlink()


def _ignore_elsewhere(root: Path) -> None:
    (root / ".git" / "info" / "exclude").write_text("free\n")


def _track_what_is_ignored(root: Path) -> None:
    git(root, "add", "-f", "sub/out")


def _leave_git(root: Path) -> None:
    (root / ".git" / "HEAD").unlink()


def _make_a_secret_a_folder(root: Path) -> None:
    (root / ".env").unlink()
    (root / ".env").mkdir()
    (root / ".env" / "new").write_text("1")


def _make_a_file_a_secret_folder(root: Path) -> None:
    (root / ".aws").unlink()
    (root / ".aws").mkdir()
    (root / ".aws" / "new").write_text("1")


def _nest_a_repository(root: Path) -> None:
    git(root / "sub", "init", "-q")
    (root / "sub" / ".gitignore").write_text("c\n")


def _make_a_folder_a_link(root: Path) -> None:
    (root / "sub").rename(root / "elsewhere")
    (root / "sub").symlink_to("elsewhere")


def _add_what_is_ignored(root: Path) -> None:
    (root / "new").mkdir()
    (root / "new" / "out").write_text("1")
    (root / "new" / "kept").write_text("1")


@pytest.mark.parametrize(
    "change",
    [
        _ignore,
        _ignore_nothing,
        _ignore_elsewhere,
        _track_what_is_ignored,
        _leave_git,
        _make_a_secret_a_folder,
        _make_a_file_a_secret_folder,
        _nest_a_repository,
        _make_a_folder_a_link,
        _add_what_is_ignored,
    ],
)
@pytest.mark.parametrize("included", [frozenset(), frozenset({"sub/out", ".env"})])
def test_a_later_look_at_a_folder_finds_what_a_first_one_does(
    project: Place, change: Callable[[Path], None], included: frozenset[str]
) -> None:
    git(project.root, "init", "-q")
    (project.root / "sub").mkdir()
    _fill(project.root, {".gitignore": "out\n", "a": "1", ".env": "1", ".aws": "1"})
    _fill(project.root / "sub", {"b": "1", "c": "1", "out": "1"})
    git(project.root, "add", "-A")
    (project.root / "free").mkdir()
    _fill(project.root / "free", {"c": "1", "d": "1"})
    before = scan(project.root, included)

    change(project.root)

    assert scan(project.root, included, before) == scan(project.root, included)


def _fill(folder: Path, contents: Mapping[str, str]) -> None:
    for name, content in contents.items():
        (folder / name).write_text(content)


def test_a_folder_that_is_deeper_than_files_may_be_open_is_found(project: Place) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    deep = project.root.joinpath(*["d"] * 300)
    deep.mkdir(parents=True)
    (deep / "a").write_text("1")
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(200, limits[0]), limits[1]))
    try:
        paths = [entry.path for entry in scan(project.root).entries]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    assert paths[-1] == "/".join([*["d"] * 300, "a"])


async def test_a_repository_is_the_same_after_a_commit(project: Place) -> None:
    git(project.root, "init", "-q")
    (project.root / ".gitignore").write_text("out\n")
    (project.root / "a").write_text("1")
    git(project.root, "add", "-A")
    git(project.root, "commit", "-qm", "one")
    first = await project.start()

    (project.root / "a").write_text("2")
    (project.root / "out").write_text("3")
    git(project.root, "commit", "-qam", "two")
    start = await project.start()

    assert start.layers
    assert start.snapshot == first.snapshot
    whole = await Workspace(project.root).snapshot(project.blobs)
    assert await project.unpacked(start) == await project.unpacked(StartFiles(whole))


async def test_a_secret_that_is_added_to_git_later_is_in_no_index(project: Place) -> None:
    git(project.root, "init", "-q")
    (project.root / "a").write_text("1")
    git(project.root, "add", "-A")
    await project.start()

    (project.root / "b").write_text(KEY)
    git(project.root, "add", "-A")
    start = await project.start()

    whole = await Workspace(project.root).snapshot(project.blobs)
    assert await project.unpacked(start) == await project.unpacked(StartFiles(whole))
    (project.root / "b").write_text("1")
    git(project.root, "add", "-A")
    whole = await Workspace(project.root).snapshot(project.blobs)
    assert await project.unpacked(await project.start()) == await project.unpacked(
        StartFiles(whole)
    )


async def test_much_that_has_changed_is_a_whole_snapshot_again(project: Place) -> None:
    (project.root / "a").write_bytes(b"1")
    first = await project.start()

    (project.root / "b").write_bytes(bytes(2 * 1024**2))
    second = await project.start()

    assert second.layers == ()
    assert second.snapshot != first.snapshot
    assert await project.start() == second


async def test_names_that_are_no_utf_8_are_in_a_layer(project: Place) -> None:
    latin = [os.fsdecode(name) for name in (b"caf\xe9", b"caf\xe9s/\xff", b"gone\xe9")]
    (project.root / latin[1]).parent.mkdir()
    for name in latin[1:]:
        (project.root / name).write_bytes(b"1")
    first = await project.start()

    (project.root / latin[0]).write_bytes(b"2")
    (project.root / latin[1]).write_bytes(b"2")
    (project.root / latin[2]).unlink()
    second = await project.start()

    assert (second.snapshot, len(second.layers)) == (first.snapshot, 1)
    assert await project.unpacked(second) == await asyncio.to_thread(tree_of, project.root)


async def test_a_path_that_is_too_deep_for_a_layer_is_in_a_whole_snapshot(project: Place) -> None:
    (project.root / "a").write_bytes(b"1")
    await project.start()

    (project.root / ("d/" * 250)).mkdir(parents=True)
    (project.root / ("d/" * 250) / "b").write_bytes(b"1")
    start = await project.start()

    assert start.layers == ()


async def test_a_deleted_snapshot_is_stored_again(project: Place) -> None:
    (project.root / "a").write_bytes(b"1")
    first = await project.start()
    assert first.snapshot is not None
    await project.blobs.delete(first.snapshot)

    assert await project.start() == first
    assert await project.blobs.exists(first.snapshot)


def _cut(index: Path) -> None:
    index.write_bytes(index.read_bytes()[:-200])


def _alter(index: Path) -> None:
    index.write_bytes(index.read_bytes().replace(b'"paths":"a"', b'"paths":"z"'))


def _empty(index: Path) -> None:
    index.write_bytes(b"")


def _lead_elsewhere(index: Path) -> None:
    other = index.with_name("elsewhere")
    index.rename(other)
    index.symlink_to(other)


@pytest.mark.parametrize("damage", [_cut, _alter, _empty, _lead_elsewhere])
async def test_a_damaged_index_does_not_count(
    project: Place, opened: list[str], damage: Callable[[Path], None]
) -> None:
    (project.root / "a").write_bytes(b"1")
    first = await project.start()
    (index,) = project.indexes.iterdir()

    damage(index)

    assert await project.start() == first
    assert opened.count("a") == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_another_users_index_does_not_count(project: Place, opened: list[str]) -> None:
    (project.root / "a").write_bytes(b"1")
    first = await project.start()
    (index,) = project.indexes.iterdir()

    os.chown(index, 1234, 1234)

    assert await project.start() == first
    assert opened.count("a") == 2


async def test_a_folder_on_a_disk_with_whole_seconds_is_read_again(
    project: Place, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.root / "a").write_bytes(b"1")
    monkeypatch.setattr("fanout.orchestrator.workspace.snapshots.delta._SECOND", 1)
    first = await project.start()

    assert await project.start() == first
    assert opened.count("a") == 2


async def test_an_index_is_for_nobody_else(project: Place) -> None:
    (project.root / "a").write_bytes(b"1")
    await project.start()

    (index,) = project.indexes.iterdir()
    assert index.stat().st_mode & 0o077 == 0
    assert project.indexes.stat().st_mode & 0o077 == 0


async def test_a_person_sees_how_far_a_long_snapshot_is(
    project: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = Workspace(project.root)
    workspace.progress.done_bytes, workspace.progress.total_bytes = 500_000, 1_000_000
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(output, "stderr_is_terminal", lambda: True)
    monkeypatch.setattr(waiting, "_SHOWN_AFTER_SECONDS", 0.0)
    seen = ""

    async with waiting.snapshot_progress(workspace):
        while "0.5/1.0 MB" not in seen:
            await asyncio.sleep(0.01)
            seen += capsys.readouterr().err

    assert "Reading the files" in seen


async def test_a_snapshot_says_how_far_it_is(project: Place) -> None:
    (project.root / "a").write_bytes(b"12345")
    workspace = Workspace(project.root)
    await workspace.snapshot(project.blobs)

    assert (workspace.progress.done_bytes, workspace.progress.total_bytes) == (5, 5)
