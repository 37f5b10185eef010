"""The change bundle of every case of the truth set, from two folders and from an overlay."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from fanout.orchestrator.jobs.changes import ChangeBundle, Changes
from fanout.orchestrator.path_text import os_path
from fanout.workers.sandbox.inside.change_bundle import write_bundle
from fanout.workers.sandbox.inside.change_scan import (
    MergedSide,
    read_marks,
    scan_overlay,
    scan_trees,
)
from fanout.workers.sandbox.inside.change_sides import Side
from fanout.workers.sandbox.inside.disks import (
    PLAIN_OVERLAY,
    RENAMING_OVERLAY,
    TRUSTED_MARKS,
    USER_MARKS,
)
from tests.contract.truth_set import CASES, Case, make_snapshot_tree


def _overlay_works() -> bool:
    script = (
        "mount -t tmpfs none /mnt && mkdir /mnt/l /mnt/u /mnt/w /mnt/m && "
        f"mount -t overlay -o lowerdir=/mnt/l,upperdir=/mnt/u,workdir=/mnt/w,{RENAMING_OVERLAY} none /mnt/m"
    )
    probe = ["unshare", "-m", "sh", "-c", script]
    return (
        os.geteuid() == 0
        and subprocess.run(probe, capture_output=True, check=False).returncode == 0
    )


needs_overlay = pytest.mark.skipif(not _overlay_works(), reason="needs root and overlay mounts")


class Workspace:
    """A snapshot, and what a script makes of it."""

    def __init__(self, root: Path, kind: str) -> None:
        self.before, self.overlay = root / "before", kind != "trees"
        self._options, self._marked = (
            (RENAMING_OVERLAY, TRUSTED_MARKS) if kind == "renaming" else (PLAIN_OVERLAY, USER_MARKS)
        )
        self.after = root / ("upper" if self.overlay else "after")
        self.result = root / ("result" if self.overlay else "after")
        """All files after the script, as it saw them."""
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
            (self._root / folder).mkdir(exist_ok=True)
        layers = f"lowerdir={self.before},upperdir={self.after},workdir={self._root}/work"
        options = f"{layers},{self._options}"
        mounted = (
            f'mount -t overlay -o "{options}" none "{merged}" && cd "{merged}" && {{ {script}\n}}'
            f' && cp -a "{merged}" "{self.result}"'
        )
        subprocess.run(["unshare", "-m", "sh", "-c", mounted], check=True)

    def candidates(self) -> list[str]:
        side = self.side()
        if isinstance(side, MergedSide):
            with closing(side):
                return list(scan_overlay(self.before, self.after, side))
        return list(scan_trees(self.before, self.after))

    def side(self) -> Side:
        if self.overlay:
            marks = read_marks(self.after, self._marked)
            return MergedSide(self.before, self.after, marks)
        return Side(self.after)

    def bundle(self) -> io.BytesIO:
        out = io.BytesIO()
        write_bundle(out, self.before, self.side(), self.candidates())
        out.seek(0)
        return out

    def changes(self) -> Changes:
        with ChangeBundle.open(self.bundle()) as bundle:
            return bundle.changes


@pytest.fixture(
    params=[
        "trees",
        pytest.param("overlay", marks=needs_overlay),
        pytest.param("renaming", marks=needs_overlay),
    ]
)
def scanned(request: pytest.FixtureRequest, tmp_path: Path) -> Workspace:
    return Workspace(tmp_path, request.param)


def _described(changes: Changes) -> dict[str, str]:
    return {
        file.path: f"renamed<{file.from_path}" if file.from_path is not None else file.change.value
        for file in changes.files
    }


def _assert_both_sides(workspace: Workspace, bundle: ChangeBundle) -> None:
    """Its versions of each file are what the file was, and what it became."""
    for file in bundle.changes.files:
        for side, path, version in (
            (workspace.before, file.from_path or file.path, file.before),
            (workspace.result, file.path, file.after),
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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_bundle_says_exactly_what_changed_and_holds_both_sides(
    scanned: Workspace, case: Case
) -> None:
    scanned.run(case.script)

    with ChangeBundle.open(scanned.bundle()) as bundle:
        changes = bundle.changes
        _assert_both_sides(scanned, bundle)

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
    workspace = Workspace(tmp_path, "trees")
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


def test_equal_changes_make_equal_bytes(scanned: Workspace) -> None:
    scanned.run(
        "echo x >> README.md; mv pkg/core.py core; rm data/empty; echo y > new; echo z > a.log"
    )

    assert scanned.bundle().getvalue() == scanned.bundle().getvalue()


def test_lines_are_counted(scanned: Workspace) -> None:
    scanned.run("sed -i '1s/.*/first/; 2d' pkg/core.py; cp data/binary.bin b.bin")

    by_path = {file.path: file for file in scanned.changes().files}

    assert (by_path["pkg/core.py"].lines_added, by_path["pkg/core.py"].lines_removed) == (1, 2)
    assert by_path["b.bin"].binary
    assert by_path["b.bin"].size_bytes == 4096


def test_a_link_in_place_of_a_folder_is_never_read_through(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, "trees")
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
    workspace = Workspace(tmp_path, "trees")
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
    workspace = Workspace(tmp_path, "overlay")
    for number in range(500):
        place = workspace.before / f"many/{number % 50}/{number}.txt"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{number}\n" * 20)
    workspace.run("for n in $(seq 0 19); do echo more >> many/$n/$n.txt; done")
    for number in range(20, 500):  # who looks for them now finds them deleted
        (workspace.before / f"many/{number % 50}/{number}.txt").unlink()

    assert len(workspace.candidates()) == 20
    assert len(workspace.changes().files) == 20


RENAMES = {
    "a folder": "mv a z",
    "to another depth": "mkdir new; mv a new/z; mv b/c c2",
    "then edited": "mv a z; echo more >> z/1; rm z/2; echo 3 > z/3; chmod 700 z/sub/x",
    "edited before": "echo more >> a/1; rm a/2; mv a z",
    "twice": "mv a z; mv z y",
    "back": "mv a z; mv z a",
    "into another renamed one": "mv b z; mv a z/a; mv z/c z/d",
    "then the old name is made again": "mv a z; mkdir a; echo new > a/1",
    "then another takes the old name": "mv a z; mv b a",
    "swapped": "mv a z; mv b a; mv z b",
    "over an empty folder": 'mkdir z; python3 -c \'import os; os.rename("a", "z")\'',
    "over a folder that was emptied": (
        'rm b/c/* b/3; rmdir b/c; python3 -c \'import os; os.rename("a", "b")\''
    ),
    "out and deleted": "mv a z; rm -r z",
    "out and replaced by a file": "mv a z; rm -r z; echo file > z; echo file > a",
    "a part of one": "mv a z; mv z/sub y",
    "a part of one, which is then deleted": "mv a z; mv z/sub y; rm -r z",
    "back into its own place, one level down": "mv a z; mkdir a; mv z a/a",
    "with hard links": "mv links z; echo more >> z/one",
    "with links": "mv a z; ln -s z a; mv z/sub z/link-target",
    "an ignored one": "mv a build",
    "with an odd name": "mv a $'z\\n\\t\"\u00e4'; mv b $'b\\xff'",
    "with a repository": "mkdir -p a/.git; echo x > a/.git/x; mv a z",
    "a chain": "mv a a1; mv b a; mv a1 b; mv b/sub a/sub; mv a b/inner; mkdir a",
    "deep": "mkdir -p d/e/f; mv a d/e/f/g; mv d/e h; mv h/f/g/sub d/i",
    "over what was deleted": "rm -r b; mv a b",
    "made, filled, and filled by a renamed one": "mkdir z; echo x > z/x; mv a z/; mv z y",
}
"""What scripts do to folders that the snapshot has."""


@needs_overlay
@pytest.mark.parametrize("script", RENAMES.values(), ids=RENAMES)
def test_a_renamed_folder_is_collected_as_its_files_are_seen(tmp_path: Path, script: str) -> None:
    workspace = Workspace(tmp_path, "renaming")
    for path in ("a/1", "a/2", "a/sub/x", "b/3", "b/c/4", "b/c/5", "links/one"):
        place = workspace.before / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{path} " * 20)
    (workspace.before / "links/two").hardlink_to(workspace.before / "links/one")
    (workspace.before / "a/empty").mkdir()
    workspace.run(script)
    expected = io.BytesIO()
    candidates = scan_trees(workspace.before, workspace.result)
    write_bundle(expected, workspace.before, workspace.result, candidates)

    assert workspace.bundle().getvalue() == expected.getvalue()


@needs_overlay
def test_a_folder_of_many_files_is_renamed_as_a_whole(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, "renaming")
    for number in range(6000):
        place = workspace.before / f"many/{number % 50}/{number}.txt"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{number}\n")
    workspace.run("mv many lots")

    changes = workspace.changes()

    assert not changes.skipped
    assert {file.change.value for file in changes.files} == {"renamed"}
    assert len(changes.files) == 6000


@needs_overlay
@pytest.mark.parametrize(
    "redirect",
    [
        "/../../../../../etc",
        "..",
        ".",
        "/a/../../../etc",
        "//etc",
        "",
        "a/b",
        "/outward/etc",
        "/a/",
        "/missing",
    ],
)
def test_a_redirect_that_leads_nowhere_below_shows_nothing(tmp_path: Path, redirect: str) -> None:
    workspace = Workspace(tmp_path, "renaming")
    (workspace.before / "a").mkdir()
    (workspace.before / "a/file").write_text("x")
    (workspace.before / "outward").symlink_to("/")
    workspace.run("mkdir made; echo y > made/new")
    os.setxattr(workspace.after / "made", f"{TRUSTED_MARKS}redirect", redirect.encode())

    assert _described(workspace.changes()) == {"made/new": "added"}


@needs_overlay
def test_marks_that_a_job_can_set_are_not_believed(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, "renaming")
    (workspace.before / "kept").mkdir()
    (workspace.before / "kept/file").write_text("x")
    workspace.run("touch kept/more; mkdir made")
    for folder, mark, value in (
        ("kept", "opaque", b"y"), ("made", "redirect", b"/kept"), ("kept", "redirect", b"/pkg"),
    ):  # fmt: skip
        os.setxattr(workspace.after / folder, f"{USER_MARKS}{mark}", value)

    assert _described(workspace.changes()) == {"kept/more": "added", "made": "added"}
