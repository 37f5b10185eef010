"""A merge carries the executable bit, and nothing else of a mode."""

import asyncio
import os
import stat
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.workspace.merge import merge
from fanout.orchestrator.workspace.merge_report import MergeReport
from fanout.orchestrator.workspace.workspace import Workspace
from tests.bundles import BundleBuilder


async def put_in(root: Path, bundle: BundleBuilder) -> MergeReport:
    with ExitStack() as stack:
        opened = await asyncio.to_thread(stack.enter_context, ChangeBundle.open(bundle.build()))
        return await merge(Workspace(root), opened)


@contextmanager
def umask(mask: int):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize(
    ("job", "mask", "here"),
    [
        (0o666, 0o022, 0o644),
        (0o777, 0o022, 0o755),
        (0o6777, 0o000, 0o755),
        (0o1666, 0o000, 0o644),
        (0o666, 0o077, 0o600),
        (0o711, 0o077, 0o700),
        (0o000, 0o022, 0o644),
        (0o100, 0o022, 0o755),
    ],
)
async def test_a_new_file_is_executable_or_not_and_follows_the_umask(tmp_path, job, mask, here):
    bundle = BundleBuilder()

    with umask(mask):
        await put_in(tmp_path, bundle.add("sub/new", bundle.file(b"x", job)))

    assert mode_of(tmp_path / "sub/new") == here
    assert mode_of(tmp_path / "sub") == 0o755 & ~mask


@pytest.mark.parametrize(
    ("mine", "before", "after", "merged"),
    [
        (0o600, 0o644, 0o777, 0o700),
        (0o640, 0o644, 0o666, 0o640),
        (0o644, 0o644, 0o4755, 0o755),
        (0o755, 0o755, 0o644, 0o644),
        (0o750, 0o755, 0o755, 0o750),
        (0o644, 0o644, 0o2646, 0o644),
    ],
)
@pytest.mark.parametrize("changed", [False, True])
async def test_of_a_change_only_the_executable_bit_is_taken(
    tmp_path: Path, *, mine: int, before: int, after: int, merged: int, changed: bool
) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "file").chmod(mine)
    bundle = BundleBuilder()
    new = b"new" if changed else b"old"

    await put_in(
        tmp_path, bundle.change("file", bundle.file(b"old", before), bundle.file(new, after))
    )

    assert mode_of(tmp_path / "file") == merged


async def test_a_moved_file_keeps_its_mode(tmp_path):
    (tmp_path / "private").write_bytes(b"old")
    (tmp_path / "private").chmod(0o600)
    bundle = BundleBuilder()

    await put_in(
        tmp_path, bundle.rename("private", "moved", bundle.file(b"old"), bundle.file(b"old"))
    )

    assert mode_of(tmp_path / "moved") == 0o600


async def test_a_folder_is_never_open_to_all(tmp_path):
    (tmp_path / "mine").mkdir(mode=0o700)
    bundle = BundleBuilder().add("new", BundleBuilder().directory(0o777))
    bundle.change("mine", bundle.directory(0o755), bundle.directory(0o777))

    with umask(0):
        await put_in(tmp_path, bundle)

    assert mode_of(tmp_path / "new") == 0o755
    assert mode_of(tmp_path / "mine") == 0o700


async def test_a_file_in_place_of_a_link_gets_the_mode_of_a_new_one(tmp_path):
    (tmp_path / "link").symlink_to("nowhere")
    bundle = BundleBuilder()

    await put_in(tmp_path, bundle.change("link", bundle.link("nowhere"), bundle.file(b"x", 0o666)))

    assert mode_of(tmp_path / "link") == 0o644
