"""Layers: composed they do what they do one after another, stacked what they do merged."""

from __future__ import annotations

import asyncio
import io
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.jobs.failures import BlobMissing, InvalidJob
from fanout.orchestrator.jobs.spec import MAX_LAYERS, StartFiles
from fanout.orchestrator.workspace import layers
from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.workers.sandbox.inside import archives
from fanout.workers.sandbox.inside import snapshots as inside
from fanout.workers.sandbox.inside.change_bundle import write_bundle
from fanout.workers.sandbox.inside.change_scan import scan_trees
from fanout.workers.sandbox.layers import Element, element_archive
from tests.bundles import BundleBuilder, tree_of

EXAMPLES = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
PATHS = ("a", "a/b", "a/b/c", "a/d", "e", "e/f")
STATES = st.dictionaries(
    st.sampled_from(PATHS), st.sampled_from(["one", "two", "+x", "link", "folder"]), max_size=5
)
"""A tree: what is at each path; one above another is a folder."""

State = dict[str, str]


def keep_owner(_path: str | Path) -> None:
    """As the local provider."""


def write_tree(root: Path, state: State) -> None:
    root.mkdir()
    for path, kind in sorted(state.items()):
        place = root / path
        if any(other.startswith(f"{path}/") for other in state) or kind == "folder":
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if kind == "link":
            place.symlink_to("elsewhere")
        else:
            place.write_text(f"{kind}\n")
            place.chmod(0o755 if kind == "+x" else 0o644)


def make_bundle(before: Path, after: Path) -> io.BytesIO:
    out = io.BytesIO()
    write_bundle(out, before, after, scan_trees(before, after))
    out.seek(0)
    return out


def unpacked(layer: Path, scratch: Path) -> tuple[Path, list[str]]:
    async def archive_members() -> list[str]:
        removed: list[str] = []
        element = Element("id", "blob", is_layer=True)

        async def source(_blob: str) -> Path:
            return layer

        async with element_archive(element, source) as archive:
            await asyncio.to_thread(archives.unpack, archive, scratch, keep_owner, removed)
        return removed

    scratch.mkdir()
    return scratch, asyncio.run(archive_members())


def seen(trees: Sequence[Path]) -> dict[str, tuple[str, int, bytes]]:
    """What an overlay of these shows, as `tree_of`."""
    stacked = inside.Stacked(trees)
    found: dict[str, tuple[str, int, bytes]] = {}

    def walk(folder: str) -> Iterator[str]:
        for name in stacked.names(folder):
            path = f"{folder}/{name}".lstrip("/")
            yield path
            yield from walk(path)

    for path in set(walk("")):
        top = next(tree for tree in trees if (tree / path).exists() or (tree / path).is_symlink())
        status = stacked.status(path)
        assert status is not None
        found |= {name: one for name, one in tree_of(top).items() if name == path}
    return found


def without_implied_folders(tree: dict[str, tuple[str, int, bytes]]) -> dict[str, object]:
    """A folder may go or stay with its last file."""
    return {path: one for path, one in tree.items() if one[0] != "directory"}


@EXAMPLES
@given(st.lists(STATES, min_size=2, max_size=4))
@example([{"a/b": "one"}, {}, {"a/b": "two"}])
@example([{"a": "one"}, {"a/b": "one"}, {"a": "link"}])
@example([{"a/b/c": "one", "a/d": "one"}, {"a": "two"}, {"a/d": "folder"}])
@pytest.mark.slow
def test_stacked_merged_and_folded_layers_show_what_the_last_job_left(states: list[State]) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for number, state in enumerate(states):
            write_tree(root / f"left{number}", state)
        stacked, merged = [root / "left0"], root / "left0"
        made = []
        for number in range(1, len(states)):
            file = root / f"layer{number}"
            with file.open("wb") as sink:
                layers.write(
                    sink, [make_bundle(root / f"left{number - 1}", root / f"left{number}")]
                )
            made.append(file)
            layer, removed = unpacked(file, root / f"stacked{number}")
            inside.stack(layer, removed, stacked, keep_owner)
            stacked = [layer, *stacked]
            layer, removed = unpacked(file, root / f"written{number}")
            inside.copy_linked(merged, root / f"merged{number}")
            merged = root / f"merged{number}"
            inside.merge_into(merged, layer, removed, keep_owner)
        with (root / "folded").open("wb") as sink:
            layers.write(sink, made)
        layer, removed = unpacked(root / "folded", root / "folded-written")
        inside.copy_linked(root / "left0", root / "folded-merged")
        inside.merge_into(root / "folded-merged", layer, removed, keep_owner)

        left = tree_of(root / f"left{len(states) - 1}")
        assert seen(stacked) == tree_of(merged)
        for one in (merged, root / "folded-merged"):
            assert without_implied_folders(tree_of(one)) == without_implied_folders(left)
        assert without_implied_folders(tree_of(root / "left0")) == without_implied_folders(
            _written(root, states[0])
        )


def _written(root: Path, state: State) -> dict[str, tuple[str, int, bytes]]:
    write_tree(root / "again", state)
    return tree_of(root / "again")


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(str(tmp_path / "blobs"))


async def test_equal_changes_are_one_layer_whatever_else_a_bundle_has(blobs: BlobStore) -> None:
    bundle = BundleBuilder().edit("a", b"1", b"2").build()
    first = await layers.start_after(blobs, StartFiles(), bundle)
    with tarfile.open(fileobj=bundle, mode="a") as archive:
        member = tarfile.TarInfo("checkpoint")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"x"))

    assert await layers.start_after(blobs, StartFiles(), bundle) == first
    assert await asyncio.to_thread(content_of, await blobs.fetch(first.layers[0])) == {"a": b"2"}


def content_of(layer: Path) -> dict[str, bytes]:
    """The contents that a layer has: those after the changes."""
    with ChangeBundle.open(layer) as bundle:
        versions = {file.path: file.after for file in bundle.changes.files if file.after}
        names = {f"objects/{version.sha256}" for version in versions.values()}
        assert bundle._members.keys() == {"changes.json", *names}
        return {path: bundle.content(version) for path, version in versions.items()}


async def test_what_changed_nothing_adds_no_layer(blobs: BlobStore) -> None:
    start = StartFiles(await blobs.put(b"snapshot"), (await blobs.put(b"layer"),))

    assert await layers.start_after(blobs, start, BundleBuilder().build()) == start
    assert await layers.start_after(blobs, start, None) == start


async def test_a_missing_blob_of_the_start_is_found_before_a_job_is_submitted(
    blobs: BlobStore,
) -> None:
    start = StartFiles("0" * 64)

    with pytest.raises(BlobMissing):
        await layers.start_after(blobs, start, BundleBuilder().edit("a", b"1", b"2").build())


async def test_the_longest_list_is_folded_into_one_layer(blobs: BlobStore) -> None:
    start = StartFiles()
    for number in range(MAX_LAYERS + 1):
        before, after = f"{number - 1}".encode(), f"{number}".encode()
        builder = BundleBuilder().add(f"f{number}", BundleBuilder().file(b"x"))
        builder.file(b"x")
        builder.edit("a", before, after) if number else builder.add("a", builder.file(after))
        if number:
            builder.delete(f"f{number - 1}", builder.file(b"x"))
        assert len(start.layers) == number
        start = await layers.start_after(blobs, start, builder.build())

    assert len(start.layers) == 1
    assert await asyncio.to_thread(content_of, await blobs.fetch(start.layers[0])) == {
        "a": str(MAX_LAYERS).encode(),
        f"f{MAX_LAYERS}": b"x",
    }


async def test_layers_too_large_for_one_are_folded_into_few_and_at_last_refused(
    blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "MAX_MEMBERS", 50)
    start, per_layer = StartFiles(), 20
    with pytest.raises(InvalidJob, match="apply their changes"):  # noqa: PT012 - the last of them
        for number in range(3 * MAX_LAYERS):
            builder = BundleBuilder()
            file = builder.file(b"x")
            for index in range(per_layer):
                builder.add(f"{number}/{index}", file)
            start = await layers.start_after(blobs, start, builder.build())
            assert len(start.layers) <= MAX_LAYERS
    assert number == 2 * MAX_LAYERS


def test_a_merged_layer_never_writes_to_a_file_that_another_tree_shares(tmp_path: Path) -> None:
    write_tree(tmp_path / "base", {"a": "one", "e/f": "two"})
    write_tree(tmp_path / "written", {"a": "two", "e/f": "+x"})
    inside.copy_linked(tmp_path / "base", tmp_path / "tree")
    assert (tmp_path / "base/a").stat().st_nlink == 2

    inside.merge_into(tmp_path / "tree", tmp_path / "written", [], keep_owner)

    assert (tmp_path / "base/a").read_text() == "one\n"
    assert (tmp_path / "base/e/f").stat().st_mode & 0o777 == 0o644
    shutil.rmtree(tmp_path / "tree")
