"""The change bundle of every case of the truth set, from two folders and from an overlay."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from fanout.orchestrator.jobs.changes import ChangeBundle, Changes
from fanout.orchestrator.path_text import os_path
from fanout.workers.sandbox.inside.collection.change_bundle import write_bundle
from fanout.workers.sandbox.inside.collection.change_scan import scan_trees, scan_upper
from tests.contract.truth_set import CASES, Case, make_snapshot_tree


def _overlay_works() -> bool:
    script = (
        "mount -t tmpfs none /mnt && mkdir /mnt/l /mnt/u /mnt/w /mnt/m && "
        "mount -t overlay -o lowerdir=/mnt/l,upperdir=/mnt/u,workdir=/mnt/w,userxattr none /mnt/m"
    )
    probe = ["unshare", "-m", "sh", "-c", script]
    return (
        os.geteuid() == 0
        and subprocess.run(probe, capture_output=True, check=False).returncode == 0
    )


needs_overlay = pytest.mark.skipif(not _overlay_works(), reason="needs root and overlay mounts")


class Workspace:
    """A snapshot, and what a script makes of it."""

    def __init__(self, root: Path, *, overlay: bool) -> None:
        self.before, self.overlay = root / "before", overlay
        self.after = root / ("upper" if overlay else "after")
        self._root = root
        self.before.mkdir()
        make_snapshot_tree(self.before)

    def run(self, script: str) -> None:
        merged = self._root / "after"
        if not self.overlay:
            shutil.copytree(self.before, merged, symlinks=True)
            subprocess.run(["sh", "-c", script], cwd=merged, check=True)
            return
        for folder in ("upper", "work", "after"):
            (self._root / folder).mkdir()
        options = (
            f"lowerdir={self.before},upperdir={self.after},workdir={self._root}/work,userxattr"
        )
        mounted = (
            f'mount -t overlay -o "{options}" none "{merged}" && cd "{merged}" && {{ {script}\n}}'
        )
        subprocess.run(["unshare", "-m", "sh", "-c", mounted], check=True)

    def candidates(self) -> list[str]:
        return list((scan_upper if self.overlay else scan_trees)(self.before, self.after))

    def bundle(self) -> io.BytesIO:
        out = io.BytesIO()
        write_bundle(out, self.before, self.after, self.candidates())
        out.seek(0)
        return out

    def changes(self) -> Changes:
        with ChangeBundle.open(self.bundle()) as bundle:
            return bundle.changes


@pytest.fixture(params=["trees", pytest.param("overlay", marks=needs_overlay)])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Workspace:
    return Workspace(tmp_path, overlay=request.param == "overlay")


def _described(changes: Changes) -> dict[str, str]:
    return {
        file.path: f"renamed<{file.from_path}" if file.from_path is not None else file.change.value
        for file in changes.files
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_bundle_says_exactly_what_changed(workspace: Workspace, case: Case) -> None:
    workspace.run(case.script)

    changes = workspace.changes()

    assert _described(changes) == case.files
    assert changes.ignored == case.ignored
    assert tuple(entry.path for entry in changes.skipped) == case.skipped
    assert [file.path for file in changes.files] == sorted(case.files)


def _contents(root: Path, paths: set[str]) -> dict[str, tuple[str, bytes]]:
    """Kind and content of the paths, as far as git can carry them."""
    found = {}
    for path in paths:
        place = root / os_path(path)
        if not os.path.lexists(place) or (place.is_dir() and not place.is_symlink()):
            continue
        if place.is_symlink():
            found[path] = ("link", os.fsencode(place.readlink()))
        else:
            executable = place.stat().st_mode & stat.S_IXUSR
            found[path] = ("program" if executable else "file", place.read_bytes())
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_patch_makes_the_result_of_the_snapshot(tmp_path: Path, case: Case) -> None:
    workspace = Workspace(tmp_path, overlay=False)
    workspace.run(case.script)
    with ChangeBundle.open(workspace.bundle()) as bundle:
        patch = bundle.patch()
        paths = {file.path for file in bundle.changes.files} | {
            file.from_path for file in bundle.changes.files if file.from_path
        }
    shutil.rmtree(workspace.before / ".git")

    if patch:
        subprocess.run(["git", "apply", "-"], cwd=workspace.before, input=patch, check=True)

    assert _contents(workspace.before, paths) == _contents(workspace.after, paths)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_bundle_holds_both_sides(workspace: Workspace, case: Case) -> None:
    workspace.run(case.script)

    with ChangeBundle.open(workspace.bundle()) as bundle:
        for file in bundle.changes.files:
            for side, path, version in (
                (workspace.before, file.from_path or file.path, file.before),
                (workspace.after, file.path, file.after),
            ):
                if version is None:
                    continue
                place = side / os_path(path)
                content = bundle.content(version)
                assert stat.S_IMODE(place.lstat().st_mode) == version.mode
                if version.kind == "symlink":
                    assert os.fsencode(place.readlink()) == content
                elif version.kind == "file":
                    assert place.read_bytes() == content
                    assert len(content) == version.size_bytes


def test_equal_changes_make_equal_bytes(workspace: Workspace) -> None:
    workspace.run(
        "echo x >> README.md; mv pkg/core.py core; rm data/empty; echo y > new; echo z > a.log"
    )

    assert workspace.bundle().getvalue() == workspace.bundle().getvalue()


def test_lines_are_counted(workspace: Workspace) -> None:
    workspace.run("sed -i '1s/.*/first/; 2d' pkg/core.py; cp data/binary.bin b.bin")

    by_path = {file.path: file for file in workspace.changes().files}

    assert (by_path["pkg/core.py"].lines_added, by_path["pkg/core.py"].lines_removed) == (1, 2)
    assert by_path["b.bin"].binary
    assert by_path["b.bin"].size_bytes == 4096


def test_a_link_in_place_of_a_folder_is_never_read_through(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, overlay=False)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("not the job's")
    workspace.run("true")
    shutil.rmtree(workspace.after / "folder")
    (workspace.after / "folder").symlink_to(outside)
    out = io.BytesIO()

    write_bundle(
        out, workspace.before, workspace.after, ["folder/x"]
    )  # a candidate of before the swap

    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
        contents = [archive.extractfile(member).read() for member in archive]
    assert not any(b"not the job's" in content for content in contents)


def test_files_that_do_not_fit_into_the_bundle_are_named(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, overlay=False)
    workspace.run(
        "head -c 3000 /dev/zero > a; head -c 2000 /dev/zero > b; echo c > c; head -c 9999 /dev/zero > d"
    )
    out = io.BytesIO()

    write_bundle(
        out,
        workspace.before,
        workspace.after,
        workspace.candidates(),
        max_file_bytes=5000,
        max_total_bytes=4000,
    )
    out.seek(0)

    with ChangeBundle.open(out) as bundle:
        assert [file.path for file in bundle.changes.files] == ["a", "c"]
        assert [entry.path for entry in bundle.changes.skipped] == ["b", "d"]
        assert "5000" in bundle.changes.skipped[1].reason


@needs_overlay
def test_changes_in_an_overlay_are_found_without_a_look_at_the_other_files(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, overlay=True)
    for number in range(500):
        place = workspace.before / f"many/{number % 50}/{number}.txt"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{number}\n" * 20)
    workspace.run("for n in $(seq 0 19); do echo more >> many/$n/$n.txt; done")
    for number in range(20, 500):  # who looks for them now finds them deleted
        (workspace.before / f"many/{number % 50}/{number}.txt").unlink()

    assert len(workspace.candidates()) == 20
    assert len(workspace.changes().files) == 20
