"""A repository of others: landing on a branch starts none of its programs and leaves it alone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from unicodedata import category

import pytest

from fanout.orchestrator.landing.branch import (
    BranchLanding,
    BranchReport,
    BranchUnusable,
    land_on_branch,
)
from tests.adversarial.test_git_repositories import NEW, OLD, TRAPS, Trap, git
from tests.bundles import BundleBuilder, tree_of
from tests.unit.test_branch_landing import one_job


def land(root: Path, bundle: BundleBuilder, branch: str = "landed") -> BranchReport:
    where = BranchLanding(root, branch, None)
    return asyncio.run(land_on_branch(one_job(bundle), ["root"], where))


def own_data(root: Path) -> dict[str, tuple[str, int, bytes]]:
    """The work tree, the index, the hooks, the configuration and the references."""
    return {
        name: entry
        for name, entry in tree_of(root).items()
        if "/objects/" not in name and not name.endswith("refs/heads/landed")
    }


@pytest.mark.parametrize("plant", TRAPS.values(), ids=TRAPS)
def test_no_program_of_a_repository_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Trap], None]
) -> None:
    trap = Trap(tmp_path)
    plant(trap)
    trap.canary.unlink(missing_ok=True)  # planting it used Git
    monkeypatch.setenv("PATH", f".{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(trap.root)
    before = own_data(trap.root)
    made = BundleBuilder().edit("sub/b.txt", OLD, NEW)

    try:
        report = land(trap.root, made.add("new", made.file(NEW)))
    except BranchUnusable as error:  # what a partial clone lacks is not fetched
        assert "is missing in this clone" in str(error)  # noqa: PT017
        report = None

    assert not trap.canary.exists()
    assert own_data(trap.root) == before
    if report is None:
        return
    assert report.outcome in {"created", "nothing"}
    assert report.outcome == "created" or report.merge.refused  # a filter is never run


def test_every_hook_is_silent(tmp_path: Path) -> None:
    trap = Trap(tmp_path)
    hooks = (
        "reference-transaction post-commit commit-msg prepare-commit-msg pre-commit pre-receive"
        " update post-update post-index-change post-rewrite"
    )
    for name in hooks.split():
        (trap.root / ".git/hooks" / name).write_bytes(trap.program.read_bytes())
        (trap.root / ".git/hooks" / name).chmod(0o755)
    git(trap.root, "branch", "live")
    assert trap.canary.exists()
    trap.canary.unlink()

    assert land(trap.root, BundleBuilder().edit("sub/b.txt", OLD, NEW)).outcome == "created"
    assert not trap.canary.exists()


def test_a_reference_that_is_a_symlink_is_not_written_through(tmp_path: Path) -> None:
    trap = Trap(tmp_path)
    target = tmp_path / "target"
    target.mkdir()
    (trap.root / ".git/refs/heads/evil").symlink_to(target)

    with pytest.raises(BranchUnusable, match="is a symlink"):
        land(trap.root, BundleBuilder().edit("sub/b.txt", OLD, NEW), "evil/x")

    (trap.root / ".git/refs/heads/file").symlink_to(target / "made")
    land(trap.root, BundleBuilder().edit("sub/b.txt", OLD, NEW), "file")
    assert (trap.root / ".git/refs/heads/file").is_symlink() is False
    assert list(target.iterdir()) == []


def test_a_git_directory_that_is_a_symlink_runs_nothing(tmp_path: Path) -> None:
    trap = Trap(tmp_path)
    trap.set("core.fsmonitor", str(trap.program))
    trap.set("core.hooksPath", str(tmp_path))
    (trap.root / ".git").rename(tmp_path / "elsewhere")
    (trap.root / ".git").symlink_to(tmp_path / "elsewhere")
    trap.canary.unlink(missing_ok=True)

    assert land(trap.root, BundleBuilder().edit("sub/b.txt", OLD, NEW)).outcome == "created"
    assert not trap.canary.exists()


def test_a_replaced_object_is_not_what_a_commit_is_made_of(tmp_path: Path) -> None:
    trap = Trap(tmp_path)
    (tmp_path / "evil").write_bytes(b"evil\n")
    evil = git(trap.root, "hash-object", "-w", str(tmp_path / "evil")).strip()
    real = git(trap.root, "rev-parse", "HEAD:sub/b.txt").strip()
    git(trap.root, "replace", real, evil)

    report = land(trap.root, BundleBuilder().edit("sub/b.txt", OLD, NEW))

    assert report.merge.complete
    assert git(trap.root, "--no-replace-objects", "show", "landed:sub/b.txt").encode() == NEW


@pytest.mark.parametrize("name", ["config", "HEAD", "packed-refs"])
def test_a_pipe_in_a_repository_stops_nobody(tmp_path: Path, name: str) -> None:
    trap = Trap(tmp_path)
    (trap.root / ".git" / name).unlink(missing_ok=True)
    os.mkfifo(trap.root / ".git" / name)

    with pytest.raises(BranchUnusable):
        land(trap.root, BundleBuilder().edit("sub/b.txt", OLD, NEW))


def test_a_summary_cannot_forge_a_commit(tmp_path: Path) -> None:
    trap = Trap(tmp_path)
    trap.set("user.name", "A <a@b>\nauthor Evil <evil@x> 0 +0000\n")
    trap.set("user.email", "x>\ncommitter y")

    assert land(trap.root, BundleBuilder().edit("sub/b.txt", OLD, NEW)).outcome == "created"

    header = git(trap.root, "cat-file", "commit", "landed").partition("\n\n")[0].split("\n")
    assert [line.split(" ")[0] for line in header] == ["tree", "parent", "author", "committer"]
    assert git(trap.root, "fsck", "--strict", "--no-dangling") == ""


OBEYED = """Fixes #12: the \u202etotal\u009b2J [skip ci]

This closes acme/shop#7 and resolves https://github.com/acme/shop/issues/9, fixed: PROJ-31.
It fixes the 3 tests.
Note: nothing else changed.
Signed-off-by: Ann <ann@example.com>
Co-authored-by: Ann <ann@example.com>
  Closes: 12
---
diff --git a/x b/x
+++ b/x
From 0123456789abcdef0123456789abcdef01234567 Mon Sep 17 00:00:00 2001
***NO_CI***\ufeff\U000e0041\u2028
skip-checks: true
"""


def test_a_summary_says_nothing_to_git_a_mail_or_a_hosting_service(tmp_path: Path) -> None:
    trap = Trap(tmp_path)
    jobs = one_job(BundleBuilder().edit("sub/b.txt", OLD, NEW))
    jobs.summary = OBEYED

    asyncio.run(land_on_branch(jobs, ["root"], BranchLanding(trap.root, "landed", None)))

    message = git(trap.root, "log", "-1", "--format=%B", "landed")
    lines = message.strip().split("\n")
    assert lines[0] == "Fixes - #12: the \u27e8U+202E\u27e9total\u27e8U+009B\u27e92J (skip ci)"
    assert "closes - acme/shop#7 and resolves - https://" in message
    assert "fixed - PROJ-31" in message
    assert {"It fixes the 3 tests.", "Note: nothing else changed."} <= set(lines)
    assert "(NO_CI)\u27e8U+FEFF\u27e9\u27e8U+E0041\u27e9\u27e8U+2028\u27e9" in lines
    assert "> Signed-off-by: Ann <ann@example.com>" in lines
    assert not [
        line
        for line in lines[1:-2]
        if line.startswith(("---", "diff ", "+++", "From ", "Signed", "Co-", "skip-", "  Closes"))
    ]
    trailers = git(trap.root, "log", "-1", "--format=%(trailers)", "landed")
    assert [line.partition(":")[0] for line in trailers.split("\n") if line] == [
        "Fanout-Job",
        "Fanout-Tree",
    ]
    assert controls(message) == []


def controls(text: str) -> list[str]:
    return [hex(ord(one)) for one in text if one != "\n" and category(one) in {"Cc", "Cf", "Zl"}]


def test_a_job_writes_no_trailer_of_another(tmp_path: Path) -> None:
    trap = Trap(tmp_path)
    jobs = one_job(BundleBuilder().edit("sub/b.txt", OLD, NEW))
    jobs.summary = "Fanout-Job: other\n\nText\x00\x1b[2J\n\nFanout-Job: other"

    asyncio.run(land_on_branch(jobs, ["root"], BranchLanding(trap.root, "landed", None)))

    shown = git(trap.root, "log", "-1", "--format=%(trailers:key=Fanout-Job,valueonly)", "landed")
    assert shown.split() == ["root"]
    assert "\x1b" not in git(trap.root, "log", "-1", "--format=%B", "landed")
