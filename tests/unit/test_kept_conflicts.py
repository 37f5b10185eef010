"""Both sides of conflicts are kept: private, bounded, and gone with their run."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.landing import conflicts
from fanout.orchestrator.landing.conflicts import ConflictingFile, KeptConflicts, collect
from fanout.orchestrator.landing.runs import Landing, Runs
from fanout.orchestrator.workspace.merge_report import Conflict
from fanout.orchestrator.workspace.rooted import RootedFolder
from tests.bundles import BundleBuilder


def collected(root: Path, bundle: BundleBuilder, *paths: str) -> tuple[ConflictingFile, ...]:
    with ChangeBundle.open(bundle.build()) as opened:
        found = [Conflict(path=path, kind="overlap", reason="both") for path in paths]
        return collect(opened, found, RootedFolder(root).find)


def test_all_versions_are_written_where_a_diff_tool_reads_them(tmp_path: Path) -> None:
    (tmp_path / "root/deep").mkdir(parents=True)
    (tmp_path / "root/deep/a").write_bytes(b"yours")
    (tmp_path / "root/old").write_bytes(b"moved here")
    made = (
        BundleBuilder().edit("deep/a", b"base", b"theirs").delete("gone", BundleBuilder().file(b""))
    )
    made.rename("old", "new", made.file(b"base"), made.file(b"theirs"))
    made.add("link", made.link("deep/a"))
    kept = KeptConflicts(tmp_path / "state")

    place = kept.keep("j", collected(tmp_path / "root", made, "deep/a", "gone", "new", "link"))

    assert place == kept.place("j")
    files = {
        path.relative_to(place).as_posix(): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file() and path.name != "conflicts.json"
    }
    assert files == {
        "base/deep/a": b"base",
        "base/new": b"base",
        "yours/deep/a": b"yours",
        "yours/new": b"moved here",
        "theirs/deep/a": b"theirs",
        "theirs/new": b"theirs",
        "theirs/link": b"deep/a",
    }
    assert {one.path: one.theirs for one in kept.read("j")}["link"] == b"deep/a"
    assert all(path.stat().st_mode & 0o077 == 0 for path in (place, *place.rglob("*")))


def test_what_is_too_much_is_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conflicts, "MAX_FILES", 2)
    monkeypatch.setattr(conflicts, "MAX_BYTES", 100)
    made = (
        BundleBuilder().edit("a", b"1", b"2").edit("b", b"x" * 90, b"y" * 90).edit("c", b"1", b"2")
    )

    found = collected(tmp_path, made, "a", "b", "c", "unknown")

    assert [one.theirs for one in found] == [b"2", None, None, None]
    reasons = [one.left_out or "" for one in found]
    assert reasons[0] == ""
    assert "may have 100 bytes" in reasons[1]
    assert reasons[2:] == ["Only 2 files are kept."] * 2


def test_kept_conflicts_go_with_the_record_of_their_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.orchestrator.landing.runs.KEPT_RUNS", 2)
    monkeypatch.setattr(conflicts, "KEPT", 3)
    runs = Runs(tmp_path)
    file = ConflictingFile(path="a", reason="both", theirs=b"x")
    for job_id in "1234":
        runs.conflicts.keep(job_id, [file])
    assert [runs.conflicts.place(job_id).exists() for job_id in "1234"] == [False, True, True, True]

    for job_id in "234":
        runs.remember(job_id, Landing(workspace=tmp_path))

    assert [runs.conflicts.place(job_id).exists() for job_id in "234"] == [False, True, True]
    runs.conflicts.keep("3", [])
    assert runs.conflicts.read("3") == ()
