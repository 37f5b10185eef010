"""The files after a job, as an archive that is made while it is sent."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from hypothesis import given, settings

from fanout.orchestrator.workspace.exchange.private_places import PrivatePlaces
from fanout.orchestrator.workspace.exchange.result_archive import ResultArchive
from tests.bundles import BundleBuilder, tree_of
from tests.unit.test_layers import STATES, State, make_bundle, without_implied_folders, write_tree


def archive_of(root: Path, target: Path) -> Path:
    """The archive of a snapshot of a folder."""
    with tarfile.open(target, "w") as archive:
        for path in sorted(root.rglob("*")):
            archive.add(path, path.relative_to(root).as_posix(), recursive=False)
    return target


def unpacked(archive: ResultArchive, into: Path) -> Path:
    content = b"".join(archive.chunks())
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as result:
        result.extractall(into, filter="tar")
    return into


@settings(max_examples=10, deadline=None)
@given(before=STATES, between=STATES, after=STATES)
def test_a_result_has_the_files_of_the_end(before: State, between: State, after: State) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        states = (before, between, after)
        trees = [place / str(number) for number in range(len(states))]
        for tree, state in zip(trees, states, strict=True):
            write_tree(tree, state)
        bundles = [place / "first", place / "second"]
        bundles[0].write_bytes(make_bundle(trees[0], trees[1]).getvalue())
        bundles[1].write_bytes(make_bundle(trees[1], trees[2]).getvalue())
        base = archive_of(trees[0], place / "base")
        result = unpacked(ResultArchive(base, bundles), place / "result")
        assert without_implied_folders(tree_of(result)) == without_implied_folders(
            tree_of(trees[2])
        )


def test_only_what_was_changed_is_in_an_archive_without_the_snapshot(tmp_path: Path) -> None:
    builder = BundleBuilder().edit("a/edited", b"old", b"new")
    builder.add("link", builder.link("a/edited")).delete("gone", builder.file(b"x"))
    bundle = tmp_path / "bundle"
    bundle.write_bytes(builder.build().getvalue())
    result = unpacked(ResultArchive(None, [bundle]), tmp_path / "result")
    assert sorted(one.name for one in result.rglob("*")) == ["a", "edited", "link"]
    assert (result / "link").read_bytes() == b"new"
    assert b"".join(ResultArchive(None, []).chunks())  # an empty archive is one too


def test_no_file_lies_below_a_link_that_an_agent_made(tmp_path: Path) -> None:
    (tmp_path / "base" / "a").mkdir(parents=True)
    (tmp_path / "base" / "a" / "passwd").write_text("kept")
    base = archive_of(tmp_path / "base", tmp_path / "base.tar")
    builder = BundleBuilder()  # of a steward that lies: it deletes nothing below the link
    builder.change("a", builder.directory(), builder.link("/etc"))
    bundle = tmp_path / "bundle"
    bundle.write_bytes(builder.build().getvalue())
    content = b"".join(ResultArchive(base, [bundle]).chunks())
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as result:
        assert result.getnames() == ["a"]


def test_the_folder_of_a_killed_process_is_removed_by_the_next(tmp_path: Path) -> None:
    code = f"""
import os
from pathlib import Path
from fanout.orchestrator.workspace.exchange.private_places import PrivatePlaces
with PrivatePlaces(Path({str(tmp_path / "places")!r})).new() as place:
    (place / "file").write_text("x")
    os.kill(os.getpid(), 9)
"""
    places = PrivatePlaces(tmp_path / "places")
    with places.new() as mine:
        subprocess.run([sys.executable, "-c", code], check=False)
        assert len(list((tmp_path / "places").iterdir())) == 2
        with places.new():
            assert len(list((tmp_path / "places").iterdir())) == 2
            assert mine.is_dir()
    assert not list((tmp_path / "places").iterdir())
