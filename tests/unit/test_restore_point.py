"""Taking changes out again puts back exactly what was there."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fanout.orchestrator.jobs.changes import ChangeBundle, FileVersion
from fanout.orchestrator.landing.restore_point import MalformedRestorePoint, RestorePoint
from fanout.orchestrator.workspace.merge import FolderMerge
from fanout.orchestrator.workspace.staged_merge import StagedFolder, Staging
from tests.bundles import BundleBuilder, tree_of

Tree = dict[str, tuple[str, str]]
"""By path: `file`, `executable` or `symlink`, and the content or the target."""

KINDS = st.sampled_from(["file", "executable", "symlink"])
TREES = st.dictionaries(
    st.sampled_from(["a", "b", "d", "d/x", "d/y", "d/e/z", "e"]),
    st.tuples(KINDS, st.sampled_from(["one\n", "two\n", "one\ntwo\n"])),
).map(lambda tree: {path: entry for path, entry in tree.items() if not _is_above(path, tree)})


def _is_above(path: str, tree: Tree) -> bool:
    return any(other.startswith(f"{path}/") for other in tree)


def written(root: Path, tree: Tree) -> None:
    for path, (kind, text) in tree.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if kind == "symlink":
            place.symlink_to(text.strip().replace("\n", "-"))
        else:
            place.write_text(text)
            place.chmod(0o755 if kind == "executable" else 0o644)


def bundle_between(before: Tree, after: Tree) -> io.BytesIO:
    bundle = BundleBuilder()

    def version(tree: Tree, path: str) -> FileVersion | None:
        if path not in tree:
            return None
        kind, text = tree[path]
        if kind == "symlink":
            return bundle.link(text.strip().replace("\n", "-"))
        return bundle.file(text.encode(), 0o755 if kind == "executable" else 0o644)

    for path in sorted({*before, *after}):
        old, new = version(before, path), version(after, path)
        if old != new:
            bundle.change(path, old, new)
    return bundle.build()


@contextmanager
def put_in(root: Path) -> Iterator[StagedFolder]:
    """A folder whose changes are put in place at the end."""
    with Staging(root, None) as staging:
        folder = StagedFolder(staging)
        yield folder
        assert staging.commit(folder.steps, folder.files) == {}


@settings(max_examples=60, deadline=None)
@given(here=TREES, before=TREES, after=TREES)
@example(
    here={"d": ("symlink", "one\n")},
    before={"d": ("symlink", "one\n")},
    after={"d/x": ("file", "one\n")},
)
@example(
    here={"d/x": ("file", "one\n")},
    before={"d/x": ("file", "one\n")},
    after={"d": ("symlink", "one\n")},
)
def test_any_merge_is_taken_out_without_a_trace(here: Tree, before: Tree, after: Tree) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        written(root, here)
        was = tree_of(root)
        with ChangeBundle.open(bundle_between(before, after)) as bundle, put_in(root) as folder:
            point = RestorePoint.take(folder, [bundle])
            FolderMerge(folder, bundle, mark="theirs", on_file=folder.begin_group).run()
        stored = RestorePoint.open(io.BytesIO(point.archive.read()))
        for each in (stored, point):
            with put_in(root) as folder:
                each.restore(folder)
            assert tree_of(root) == was
        point.close()


def test_a_hostile_path_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").write_text("kept")
    (tmp_path / "root" / "link").symlink_to("..")
    changes = BundleBuilder()
    for path in ("../outside", "link/outside", "/etc/passwd", ".git/config"):
        changes.add(path, changes.file(b"x"))
    with ChangeBundle.open(changes.build()) as bundle, put_in(tmp_path / "root") as folder:
        point = RestorePoint.take(folder, [bundle])
        point.restore(folder)
    assert (tmp_path / "outside").read_text() == "kept"
    point.close()


@pytest.mark.parametrize("content", [b"", b"no archive at all", b"\0" * 10_240])
def test_what_is_no_restore_point_is_rejected(content: bytes) -> None:
    with pytest.raises(MalformedRestorePoint):
        RestorePoint.open(io.BytesIO(content))
