"""Archives with hostile members: a snapshot on a worker, a change bundle at the parent."""

import asyncio
import contextlib
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.workspace.merge import merge
from fanout.orchestrator.workspace.workspace import Workspace
from fanout.workers.sandbox.errors import SnapshotUnusable
from fanout.workers.sandbox.inside import archives, snapshots
from fanout.workers.sandbox.layers import Element
from fanout.workers.sandbox.local import provider as local_files
from tests.bundles import BundleBuilder, tree_of

NAMES = st.lists(
    st.sampled_from(
        ["a", "b", "link", "..", ".", "", ".git", "config", ".GIT", "outside", "~", "a\\..\\b", "ü"]
    ),
    min_size=1,
    max_size=4,
).map("/".join)
ABSOLUTE = NAMES.map("/tmp/".__add__)
TARGETS = st.sampled_from(
    ["OUTSIDE", "OUTSIDE/victim", "..", "../outside", "a", ".", "/", ".git", "../../.."]
)
EXAMPLES = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

Member = tuple[str, bytes, str]


@contextlib.contextmanager
def place() -> Iterator[tuple[Path, Path]]:
    """A root, and a folder beside it with one file, which is to stay as it is."""
    with tempfile.TemporaryDirectory() as folder:
        root, outside = Path(folder) / "root", Path(folder) / "outside"
        outside.mkdir()
        (outside / "victim").write_bytes(b"untouched")
        before = tree_of(outside)
        yield root, outside
        assert tree_of(outside) == before
        assert {path.name for path in Path(folder).iterdir()} <= {"root", "outside", "archive"}


def archive_of(members: list[Member], outside: Path, to: Path) -> None:
    with tarfile.open(to, "w") as archive:
        for name, kind, target in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target.replace("OUTSIDE", str(outside))
            info.size = 4 if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(b"evil"))


@EXAMPLES
@given(
    st.text(max_size=120),
    st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE]),
    st.integers(0, 8**12),
    st.lists(st.tuples(st.integers(0, 511), st.integers(0, 255)), max_size=3),
    st.booleans(),
)
@example("a", tarfile.REGTYPE, 5, [], True)
@example("a/", tarfile.DIRTYPE, 0, [], True)
@example("a", tarfile.REGTYPE, 5, [(0, 0)], True)
@example("ab", tarfile.REGTYPE, 5, [(0, 0), (345, 97)], True)
@example("a", tarfile.REGTYPE, 5, [(108, 97)], True)
@example("a", tarfile.REGTYPE, 5, [(122, 255)], True)
@example("a", tarfile.REGTYPE, 5, [(329, 97)], True)
@example("a", tarfile.REGTYPE, 5, [(344, 48)], True)
def test_a_header_is_read_as_tarfile_reads_it(
    name: str, kind: bytes, size: int, damage: list[tuple[int, int]], fits: bool
) -> None:
    info = tarfile.TarInfo(name.replace("\0", ""))
    info.type, info.size, info.mode = kind, size, 0o640
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT)[-512:])
    header[257:265] = b"ustar\x0000"
    for at, value in damage:
        header[at] = value
    if fits:
        header[148:156] = b"%06o\0 " % (sum(header) - sum(header[148:156]) + 8 * 32)

    assert _read(archives._Header, header) == _read(tarfile.TarInfo, header)


def _read(kind: type[tarfile.TarInfo], header: bytearray) -> object:
    try:
        info = kind.frombuf(header, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        return type(error)
    unused = dict.fromkeys(("uid", "gid", "uname", "gname", "devmajor", "devminor"))
    return info.get_info() | {"chksum": info.chksum, "sparse": info.issparse()} | unused


def unpack_as_steward(archive: Path, target: Path) -> None:
    archives.unpack(archive, target, snapshots.give_to_agent)


def unpack_as_local(archive: Path, target: Path) -> None:
    local_files.unpack_element(Element("id", "id", is_layer=False), archive, target, None)


@pytest.mark.parametrize(
    ("unpack", "refusal"),
    [
        (unpack_as_local, SnapshotUnusable),
        (unpack_as_steward, archives.UnusableArchive),
    ],
)
def test_no_snapshot_writes_outside_of_the_folder_it_is_unpacked_into(
    unpack: Callable[[Path, Path], None], refusal: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "AGENT_ID", os.getuid())
    kinds = [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE]
    members = st.lists(
        st.tuples(st.one_of(NAMES, ABSOLUTE), st.sampled_from(kinds), TARGETS),
        min_size=1,
        max_size=6,
    )

    @EXAMPLES
    @given(members)
    @example([("a", tarfile.SYMTYPE, "OUTSIDE"), ("a/b", tarfile.SYMTYPE, "a")])
    @example([("a", tarfile.SYMTYPE, "OUTSIDE"), ("a/victim", tarfile.REGTYPE, "")])
    @example([("a", tarfile.LNKTYPE, "OUTSIDE/victim"), ("a", tarfile.REGTYPE, "")])
    def run(members: list[Member]) -> None:
        with place() as (root, outside):
            archive_of(members, outside, outside.parent / "archive")
            if unpack is unpack_as_steward:
                root.mkdir()
            with contextlib.suppress(refusal):
                unpack(outside.parent / "archive", root)

    run()


def test_folders_that_only_paths_name_and_headers_without_an_end_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_FOLDERS", 100)
    folders, header = tmp_path / "folders", tmp_path / "header"
    archive_of(
        [("d/" * 99 + "f", tarfile.REGTYPE, ""), ("e/f", tarfile.REGTYPE, "")], tmp_path, folders
    )
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, archives.MAX_EXTENDED_BYTES + 1
    header.write_bytes(info.tobuf() + b"1" * (info.size + 511))
    for archive, said in ((folders, "more than 100 folders"), (header, "header that is too large")):
        with pytest.raises(archives.UnusableArchive, match=said):
            archives.unpack(archive, tmp_path, lambda _path: None)


def test_no_layer_changes_anything_but_the_tree_it_is_put_on() -> None:
    kinds = [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.CHRTYPE]
    names = st.one_of(NAMES, ABSOLUTE, st.sampled_from(["a/b", "a/b/c", "link/victim", "b"]))
    members = st.lists(st.tuples(names, st.sampled_from(kinds), TARGETS), min_size=1, max_size=6)

    @EXAMPLES
    @given(members)
    @example([("link/victim", tarfile.CHRTYPE, "")])
    @example([("link/victim", tarfile.REGTYPE, ""), ("link", tarfile.CHRTYPE, "")])
    @example([("a", tarfile.SYMTYPE, "OUTSIDE"), ("a/victim", tarfile.CHRTYPE, "")])
    @example([("a/b", tarfile.REGTYPE, ""), ("a/b/c", tarfile.CHRTYPE, "")])
    def run(members: list[Member]) -> None:
        with place() as (root, outside), tempfile.TemporaryDirectory() as scratch:
            (root / "a" / "b").mkdir(parents=True)
            (root / "a" / "b" / "c").write_bytes(b"as it was")
            (root / "link").symlink_to(outside)
            before = tree_of(root)
            archive, written = Path(scratch, "archive"), Path(scratch, "written")
            archive_of(members, outside, archive)
            written.mkdir()
            removed: list[str] = []
            with contextlib.suppress(archives.UnusableArchive):
                archives.unpack(archive, written, lambda _path: None, removed)
                snapshots.stack(written, removed, [root], lambda _path: None)
                snapshots.copy_linked(root, Path(scratch, "merged"))
                shutil.rmtree(written)
                written.mkdir()
                archives.unpack(archive, written, lambda _path: None, removed)
                snapshots.merge_into(Path(scratch, "merged"), written, removed, lambda _path: None)
            assert tree_of(root) == before

    run()


SIDES = st.sampled_from(["file", "link", "directory", "none"])
CHANGES = st.lists(
    st.tuples(st.one_of(NAMES, ABSOLUTE), SIDES, SIDES, st.one_of(st.none(), NAMES), TARGETS),
    min_size=1,
    max_size=6,
)


@EXAMPLES
@given(CHANGES)
def test_no_bundle_changes_anything_outside_of_the_workspace_or_in_git_data(
    changes: list[tuple[str, str, str, str | None, str]],
) -> None:
    with place() as (root, outside):
        (root / ".git").mkdir(parents=True)
        (root / ".git" / "config").write_bytes(b"untouched")
        (root / "link").symlink_to(outside)
        (root / "a").mkdir()
        before = tree_of(root / ".git")
        bundle = _bundle_of(changes, outside)

        with ExitStack() as stack:
            opened = stack.enter_context(ChangeBundle.open(bundle.build()))
            asyncio.run(merge(Workspace(root), opened))

        assert tree_of(root / ".git") == before


def _bundle_of(
    changes: list[tuple[str, str, str, str | None, str]], outside: Path
) -> BundleBuilder:
    bundle = BundleBuilder()
    for path, before, after, from_path, target in changes:
        sides = {
            "file": bundle.file(b"untouched"),
            "link": bundle.link(target.replace("OUTSIDE", str(outside))),
            "directory": bundle.directory(),
            "none": None,
        }
        bundle.change(path, sides[before], sides[after], from_path=from_path)
    return bundle
