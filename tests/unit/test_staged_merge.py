"""Nothing of a merge lands half: a full disk undoes it, a kill is finished or undone later."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.workspace import rooted, staged_merge
from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.orchestrator.workspace.merge import merge
from fanout.orchestrator.workspace.merge_report import MergeReport
from fanout.orchestrator.workspace.staged_merge import MergeUndone, MergeUnfinished
from fanout.orchestrator.workspace.workspace import Workspace
from tests.bundles import BundleBuilder, tree_of

CALLS = ("open", "mkdir", "symlink", "fchmod", "fsync", "replace", "unlink", "rmdir")
OLD, NEW = b"one\ntwo\nthree\n", b"ONE\ntwo\nthree\n"


def before(root: Path) -> None:
    root.mkdir()
    for name in ("edited", "gone", "moved", "mode", "a-folder/in-it", "deep/only"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(OLD)
    (root / "a-file").write_bytes(OLD)


def bundle() -> BundleBuilder:
    made = BundleBuilder()
    old, new = made.file(OLD), made.file(NEW)
    return (
        made.edit("edited", OLD, NEW)
        .delete("gone", old)
        .rename("moved", "new/place", old, new)
        .change("mode", old, made.file(OLD, 0o755))
        .add("new/deeper/file", new)
        .add("new/link", made.link("place"))
        .delete("a-file", old)
        .add("a-file/inside", new)
        .delete("a-folder/in-it", old)
        .delete("a-folder", made.directory())
        .add("a-folder", new)
        .delete("deep/only", old)
    )


def merge_now(root: Path, records: Path) -> MergeReport:
    workspace = Workspace(root, records=records)

    async def run() -> MergeReport:
        with ChangeBundle.open(bundle().build()) as opened:
            return await merge(workspace, opened)

    return asyncio.run(run())


def in_child(work: Callable[[], object]) -> int:
    """Run work in a forked child; return the signal that ended it, 0 for none."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.WTERMSIG(os.waitpid(pid, 0)[1])


def killed_at(number: int, *, after: bool) -> None:
    """End this process at the n-th call that changes a file system, before or after its effect."""
    count = 0

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            if call.__name__ == "open" and not (len(arguments) > 1 and arguments[1] & os.O_CREAT):
                return call(*arguments, **options)
            count += 1
            if count == number and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return call(*arguments, **options)
            finally:
                if count == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        return counted

    for name in CALLS:
        setattr(os, name, wrap(getattr(os, name)))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize(
    "after",
    [pytest.param(False, id="before"), pytest.param(True, id="after", marks=pytest.mark.slow)],
)
@pytest.mark.slow
def test_a_merge_that_is_killed_at_any_step_is_finished_or_undone(
    tmp_path: Path, *, after: bool
) -> None:
    before(tmp_path / "undisturbed")
    untouched = tree_of(tmp_path / "undisturbed")
    assert merge_now(tmp_path / "undisturbed", tmp_path / "records").complete
    merged = tree_of(tmp_path / "undisturbed")
    seen = set()
    for number in range(1, 200):
        root, records = tmp_path / str(number), tmp_path / "records"
        before(root)

        def work(number: int = number, root: Path = root, records: Path = records) -> None:
            killed_at(number, after=after)
            merge_now(root, records)

        if in_child(work) != signal.SIGKILL:
            break
        asyncio.run(Workspace(root, records=records).snapshot(BlobStore(str(tmp_path / "blobs"))))
        found = tree_of(root)
        seen.add("undone" if found == untouched else "finished" if found == merged else number)
        assert merge_now(root, records).complete
        assert tree_of(root) == merged
        shutil.rmtree(root)
    else:
        pytest.fail("it never ended")
    assert seen == {"undone", "finished"}, number
    assert number > 30
    assert list((tmp_path / "records").iterdir()) == []


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_an_edit_after_a_kill_is_not_overwritten_and_is_merged_again(
    tmp_path: Path,
) -> None:
    root, records = tmp_path / "root", tmp_path / "records"
    before(root)

    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        pytest.MonkeyPatch().setattr(staged_merge, "carry_out", die)
        merge_now(root, records)

    assert in_child(work) == signal.SIGKILL
    (root / "edited").write_bytes(b"one\ntwo\nTHREE\n")
    (root / "moved").write_bytes(b"one\ntwo\nmine\n")

    report = merge_now(root, records)

    assert (root / "edited").read_bytes() == b"ONE\ntwo\nTHREE\n"
    assert not report.complete or not (root / "moved").exists()
    assert b"mine" in b"".join(entry[2] for entry in tree_of(root).values())
    assert list(records.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=60", "fanout-test", str(place)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no right to mount")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("full", ["blocks", "inodes"])
def test_a_full_disk_undoes_a_merge_and_room_lets_it_in(
    small_disk: Path, tmp_path: Path, full: str
) -> None:
    root, records = small_disk / "root", tmp_path / "records"
    before(root)
    was = tree_of(root)
    filler = small_disk / "filler"
    filler.mkdir()
    with pytest.raises(OSError, match="No space left"):  # noqa: PT012
        for number in range(100):
            (filler / str(number)).write_bytes(b"x" * (2**20 if full == "blocks" else 0))

    with pytest.raises(MergeUndone, match=r"No space left on device\. Make room"):
        merge_now(root, records)

    assert tree_of(root) == was
    assert list(records.iterdir()) == []
    shutil.rmtree(filler)
    assert merge_now(root, records).complete


def test_records_that_cannot_be_written_leave_the_folder_as_it_was(tmp_path: Path) -> None:
    root = tmp_path / "root"
    before(root)
    was = tree_of(root)
    (tmp_path / "records").write_text("a file")

    with pytest.raises(MergeUndone, match="cannot be written"):
        merge_now(root, tmp_path / "records")

    assert tree_of(root) == was


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(28, "No space left on device"), MergeUnfinished),
        (MemoryError(), MemoryError),
    ],
)
def test_what_fails_between_two_renames_is_finished_later(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    expected: type[BaseException],
) -> None:
    root, records = tmp_path / "root", tmp_path / "records"
    before(root)
    real, calls = os.replace, []

    def failing(*arguments: Any, **options: Any) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise error
        real(*arguments, **options)

    monkeypatch.setattr(rooted.os, "replace", failing)
    with pytest.raises(expected):
        merge_now(root, records)
    assert len(list(records.iterdir())) == 1

    assert merge_now(root, records).complete
    assert list(records.iterdir()) == []
    before(tmp_path / "other")
    merge_now(tmp_path / "other", records)
    assert tree_of(root) == tree_of(tmp_path / "other")


@pytest.mark.parametrize(
    "lines",
    [
        b'{"staged":"../outside/.fanout-0123456789abcdef00000000~"}\n',
        b'{"staged":"kept"}\n{"staged":".git/.fanout-0123456789abcdef00000000~"}\n',
        b'{"steps":[{"do":"put","path":"../x","group":"g","staged":"kept"}]}\n',
        b'{"steps":[{"do":"remove","path":"../outside/kept","group":"g","expected":[1]}]}\n',
        b"\xff\x00 nothing\n{}\n[]\n",
        b'{"steps":[{"do":"remove","path":"kept","group":"g","expected":[1]}]}',
    ],
)
def test_a_damaged_record_does_no_harm(tmp_path: Path, lines: bytes) -> None:
    root, records = tmp_path / "root", tmp_path / "records"
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").write_bytes(OLD)
    (tmp_path / "outside/.fanout-0123456789abcdef00000000~").write_bytes(OLD)
    before(root)
    (root / "kept").write_bytes(OLD)
    was = tree_of(tmp_path)
    workspace = Workspace(root, records=records)
    assert workspace.record is not None
    records.mkdir()
    workspace.record.write_bytes(lines)

    asyncio.run(workspace.alone(lambda: None))

    records.rmdir()
    assert tree_of(tmp_path) == was


def test_a_change_between_the_plan_and_its_execution_is_merged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, records = tmp_path / "root", tmp_path / "records"
    before(root)
    real = staged_merge.carry_out
    edits = iter([b"one\ntwo\nTHREE\n"])

    def edited_first(*arguments: Any, **options: Any) -> Any:
        for text in edits:
            (root / "edited").write_bytes(text)
        return real(*arguments, **options)

    monkeypatch.setattr(staged_merge, "carry_out", edited_first)

    report = merge_now(root, records)

    assert report.complete
    assert (root / "edited").read_bytes() == b"ONE\ntwo\nTHREE\n"
    hows = {one.path: one.how for one in report.applied}
    assert (hows["edited"], hows["new/deeper/file"]) == ("merged", "taken")
