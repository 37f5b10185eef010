"""A branch with a commit for each job; work tree, index and hooks stay as they are."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.jobs.failures import InvalidJob, UnknownJob
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.state import JobRecord, JobState
from fanout.orchestrator.jobs.store.journal import BEGINNING, JournalEvent
from fanout.orchestrator.landing.branch import (
    BranchLanding,
    BranchReport,
    BranchUnusable,
    LandedElsewhere,
    land_on_branch,
    require_branch,
)
from tests.bundles import BundleBuilder, tree_of

OLD = b"one\ntwo\nthree\nfour\nfive\nsix\n"


def git(folder: Path, *arguments: str) -> str:
    """Git as a person has it."""
    identity = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    allowed = ("-c", "protocol.file.allow=always")
    done = subprocess.run(
        ["git", *identity, *allowed, *arguments], cwd=folder, check=True, capture_output=True
    )
    return done.stdout.decode()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    (made / "a.txt").write_bytes(OLD)
    (made / "sub").mkdir()
    (made / "sub/b.txt").write_bytes(OLD)
    git(made, "init", "-q", "-b", "main")
    git(made, "add", ".")
    git(made, "commit", "-q", "-m", "first")
    return made


@dataclass
class FakeJobs:
    """Jobs with bundles and the children that were merged into them."""

    bundles: dict[str, BundleBuilder] = field(default_factory=dict)
    children: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    summary: str | None = None

    def add(self, job_id: str, bundle: BundleBuilder, *children: str | tuple[str, str]) -> None:
        self.bundles[job_id] = bundle
        pairs = [(one, "in") if isinstance(one, str) else one for one in children]
        self.children[job_id] = list(pairs)

    async def get(self, job_id: str) -> JobRecord:
        if job_id not in self.bundles:
            raise UnknownJob("no such job")
        return JobRecord(
            id=job_id,
            root_id="root",
            agent=f"agent-of-{job_id}",
            description="x",
            state=JobState.SUCCEEDED,
            attempt=1,
            submitted_at=1000,
            finished_at=1_700_000_000,
        )

    async def result(self, job_id: str) -> JobResult | None:
        summary = self.summary or f"# Did {job_id}\n\nIn detail."
        return JobResult(
            job_id=job_id, state=JobState.SUCCEEDED, success=True, summary=summary, changes="0" * 64
        )

    async def read_events(self, job_id: str, after: str, count: int) -> list[JournalEvent]:
        landed = [] if after != BEGINNING else self.children.get(job_id, [])[:count]
        return [
            JournalEvent.model_validate(
                {"id": "1-0", "at": 1, "job_id": job_id, "attempt": 1, "type": "child.landed"}
                | {"data": {"id": child, "outcome": outcome}}
            )
            for child, outcome in landed
        ]

    @asynccontextmanager
    async def changes(self, job_id: str) -> AsyncIterator[ChangeBundle]:
        if job_id not in self.bundles:
            raise InvalidJob("changed nothing")
        with ChangeBundle.open(self.bundles[job_id].build()) as opened:
            yield opened


def land(
    jobs: FakeJobs, root: Path, branch: str = "new", *, include_executable_config: bool = False
) -> BranchReport:
    landing = BranchLanding(root, branch, None, include_executable_config)
    return asyncio.run(land_on_branch(jobs, ["root"], landing))


def one_job(bundle: BundleBuilder) -> FakeJobs:
    jobs = FakeJobs()
    jobs.add("root", bundle)
    return jobs


def edited(old: bytes, line: bytes) -> bytes:
    return old.replace(line, line.upper())


def shown(root: Path, path: str, branch: str = "new") -> str:
    return git(root, "show", f"{branch}:{path}")


def state_of(root: Path) -> tuple[object, ...]:
    files = {name: entry for name, entry in tree_of(root).items() if "/objects/" not in name}
    return tuple(sorted((name, entry) for name, entry in files.items() if "refs/" not in name))


def test_a_commit_for_each_job_and_the_rest_is_untouched(root: Path) -> None:
    (root / "a.txt").write_bytes(b"uncommitted\n")
    (root / "staged").write_bytes(b"staged\n")
    git(root, "add", "staged")
    (root / "a.txt").write_bytes(OLD)
    before = state_of(root)
    jobs = FakeJobs()
    one = edited(OLD, b"one")
    both = edited(one, b"six")
    jobs.add("c1", BundleBuilder().edit("a.txt", OLD, one))
    jobs.add("c2", BundleBuilder().edit("a.txt", OLD, edited(OLD, b"six")))
    jobs.add("out", BundleBuilder().edit("sub/b.txt", OLD, b"broken\n"))
    whole = BundleBuilder().edit("a.txt", OLD, both)
    jobs.add("root", whole.add("new.txt", whole.file(b"new\n")), "c1", ("out", "out"), "c2")

    report = land(jobs, root)

    assert report.outcome == "created"
    assert [(one.job_id, one.subject) for one in report.commits] == [
        ("c1", "Did c1"),
        ("c2", "Did c2"),
        ("root", "Did root"),
    ]
    log = git(root, "log", "--format=%an <%ae> %at %s|%(trailers:key=Fanout-Tree)", "main..new")
    assert log.splitlines()[0].startswith(
        "agent-of-root <agent-of-root@fanout.invalid> 1700000000 Did root|Fanout-Tree: root"
    )
    assert git(root, "diff", "--name-only", "main", "new").split() == ["a.txt", "new.txt"]
    assert shown(root, "a.txt").encode() == both
    assert shown(root, "a.txt", "new~2").encode() == one
    assert state_of(root) == before
    assert git(root, "fsck", "--strict", "--no-dangling") == ""
    assert git(root, "merge", "-q", "new") == ""


def test_landing_again_changes_nothing_and_another_branch_is_not_moved(root: Path) -> None:
    jobs = one_job(BundleBuilder().edit("a.txt", OLD, b"x\n"))
    tip = land(jobs, root).tip
    git(root, "branch", "taken")

    assert land(jobs, root).outcome == "before"
    assert git(root, "rev-parse", "new").strip() == tip
    with pytest.raises(LandedElsewhere, match=r"fanout apply root --into .* --branch OTHER"):
        land(jobs, root, "taken")
    with pytest.raises(LandedElsewhere):
        land(jobs, root, "taken/below")
    assert git(root, "rev-parse", "taken") == git(root, "rev-parse", "main")


def test_a_root_without_a_rest_has_landed_before_too(root: Path) -> None:
    jobs = FakeJobs()
    jobs.add("c1", BundleBuilder().edit("a.txt", OLD, b"x\n"))
    jobs.add("root", BundleBuilder().edit("a.txt", OLD, b"x\n"), "c1")

    assert [one.job_id for one in land(jobs, root).commits] == ["c1"]
    assert land(jobs, root).outcome == "before"


def test_grandchildren_and_children_that_do_not_fit(root: Path) -> None:
    jobs = FakeJobs()
    one, two = edited(OLD, b"one"), edited(edited(OLD, b"one"), b"two")
    jobs.add("g", BundleBuilder().edit("sub/b.txt", OLD, one))
    made = BundleBuilder().edit("sub/b.txt", OLD, two)
    jobs.add("c", made, "g")
    jobs.add("misfit", BundleBuilder().edit("a.txt", b"other\n", b"OTHER\n"), "g2")
    jobs.add("g2", BundleBuilder().edit("a.txt", OLD, b"never\n"))
    jobs.add("root", BundleBuilder().edit("sub/b.txt", OLD, two), "c", "misfit", "expired")

    report = land(jobs, root)

    assert [one.job_id for one in report.commits] == ["g", "c"]
    assert shown(root, "sub/b.txt").encode() == two


def test_uncommitted_work_does_not_become_part_of_a_commit(root: Path) -> None:
    mine = edited(OLD, b"six")
    (root / "a.txt").write_bytes(mine)
    (root / "untracked").write_bytes(OLD)
    made = BundleBuilder().edit("a.txt", mine, edited(mine, b"one"))
    made.edit("untracked", OLD, b"changed\n").edit("sub/b.txt", b"unsaved\n", b"SAVED\n")

    report = land(one_job(made), root)

    assert shown(root, "a.txt").encode() == edited(OLD, b"one")
    assert [one.path for one in report.merge.conflicts] == ["sub/b.txt", "untracked"]
    assert git(root, "ls-tree", "-r", "--name-only", "new").split() == ["a.txt", "sub/b.txt"]
    (kept, _) = report.conflicts
    assert (kept.base, kept.yours, kept.theirs) == (b"unsaved\n", OLD, b"SAVED\n")


def test_modes_links_deletions_renames_and_folders(root: Path) -> None:
    made = BundleBuilder()
    old = made.file(OLD)
    made.rename("a.txt", "moved/a.txt", old, made.file(edited(OLD, b"one"), 0o755))
    made.delete("sub/b.txt", old).delete("sub", made.directory())
    made.add("sub", made.link("moved")).add("empty", made.directory())
    made.add('odd \t"name\u00e9\n', made.file(b"odd"))

    report = land(one_job(made), root)

    assert report.merge.complete, report.merge
    listed = git(root, "ls-tree", "-r", "-z", "new").split("\0")
    assert [entry.partition(" ")[0] for entry in listed if entry] == ["100755", "100644", "120000"]
    assert shown(root, "sub") == "moved"


def test_hold_back_and_refusals_are_those_of_the_work_tree(root: Path) -> None:
    jobs = FakeJobs()
    child = BundleBuilder()
    child.add(".envrc", child.file(b"evil")).add("fine", child.file(b"fine"))
    jobs.add("c", child)
    made = BundleBuilder()
    made.add(".envrc", made.file(b"evil")).add("fine", made.file(b"fine"))
    made.add(".git/hooks/pre-commit", made.file(b"evil")).add("../x", made.file(b"x"))
    made.add("a\\b", made.file(b"x")).add("link", made.link("/etc"))
    jobs.add("root", made, "c")

    report = land(jobs, root)

    assert [one.path for one in report.merge.held_back] == [".envrc"]
    assert {one.path for one in report.merge.refused} == {
        ".git/hooks/pre-commit",
        "../x",
        "a\\b",
        "link",
    }
    assert [one.job_id for one in report.commits] == ["c"]
    assert ".envrc" not in git(root, "log", "--name-only", "new")
    assert land(jobs, root, "with", include_executable_config=True).merge.held_back == ()
    assert shown(root, ".envrc", "with") == "evil"


def test_a_folder_in_a_repository_and_a_linked_work_tree(root: Path, tmp_path: Path) -> None:
    jobs = one_job(BundleBuilder().edit("b.txt", OLD, b"new\n"))
    assert land(jobs, root / "sub").merge.complete
    assert shown(root, "sub/b.txt") == "new\n"

    git(root, "worktree", "add", "-q", "--detach", str(tmp_path / "tree"))
    git(tmp_path / "tree", "commit", "-q", "--allow-empty", "-m", "detached")
    assert land(jobs, tmp_path / "tree/sub", "from-tree").outcome == "created"
    assert shown(root, "sub/b.txt", "from-tree") == "new\n"
    assert "detached" in git(root, "log", "--format=%s", "from-tree")


def test_a_checkout_of_a_bare_clone(root: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(root), "bare.git")
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    git(
        tmp_path,
        "--git-dir=bare.git",
        f"--work-tree={checkout}",
        "checkout",
        "-q",
        "main",
        "--",
        ".",
    )
    jobs = one_job(BundleBuilder().edit("a.txt", OLD, b"new\n"))
    with pytest.raises(BranchUnusable, match="is in no Git repository"):
        land(jobs, checkout)
    (checkout / ".git").write_text(f"gitdir: {tmp_path / 'bare.git'}\n")

    assert land(jobs, checkout).outcome == "created"
    assert shown(tmp_path / "bare.git", "a.txt") == "new\n"


def test_a_submodule_and_a_nested_repository_have_a_history_of_their_own(
    root: Path, tmp_path: Path
) -> None:
    git(tmp_path, "clone", "-q", str(root), "other")
    git(root, "submodule", "--quiet", "add", str(tmp_path / "other"), "inner")
    git(root, "commit", "-q", "-m", "with a submodule")
    git(tmp_path, "clone", "-q", str(root), str(root / "nested"))
    made = BundleBuilder().edit("inner/a.txt", OLD, b"x\n").edit("a.txt", OLD, b"x\n")
    made.edit("nested/a.txt", OLD, b"x\n")

    report = land(one_job(made), root)

    assert {one.path for one in report.merge.refused} == {"inner/a.txt", "nested/a.txt"}
    assert "is another repository" in report.merge.refused[0].reason
    assert git(root, "diff", "--name-only", "main", "new").split() == ["a.txt"]
    assert land(one_job(BundleBuilder().edit("a.txt", OLD, b"y\n")), root / "inner").tip


def test_line_ends_of_a_work_tree_do_not_get_into_a_commit(root: Path) -> None:
    git(root, "config", "core.autocrlf", "true")
    crlf = OLD.replace(b"\n", b"\r\n")
    (root / "a.txt").write_bytes(crlf)
    made = BundleBuilder().edit("a.txt", crlf, edited(crlf, b"two"))
    made.add("new.txt", made.file(b"a\r\nb\r\n")).add("binary", made.file(b"\0\r\n"))
    made.rename("sub/b.txt", "c.txt", made.file(crlf), made.file(edited(crlf, b"one")))

    assert land(one_job(made), root).merge.complete

    assert shown(root, "a.txt").encode() == edited(OLD, b"two")
    assert shown(root, "c.txt").encode() == edited(OLD, b"one")
    assert shown(root, "new.txt") == "a\nb\n"
    assert shown(root, "binary") == "\0\r\n"


def test_a_file_with_a_filter_is_said_and_left_out(root: Path) -> None:
    (root / ".gitattributes").write_text("*.bin filter=lfs diff=lfs -text\n")
    (root / "x.bin").write_text("version https://git-lfs.github.com/spec/v1\n")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "large files")
    made = BundleBuilder().edit("x.bin", b"real", b"new").edit("a.txt", OLD, b"x\n")
    made.add("y.bin", made.file(b"new"))

    report = land(one_job(made), root)

    assert [one.path for one in report.merge.refused] == ["x.bin", "y.bin"]
    assert "runs a filter on it (lfs)" in report.merge.refused[0].reason
    assert [one.path for one in report.merge.applied] == ["a.txt"]


def test_a_shallow_clone_and_one_that_shares_its_objects(root: Path, tmp_path: Path) -> None:
    git(root, "commit", "-q", "--allow-empty", "-m", "second")
    git(root, "pack-refs", "--all")
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{root}", "shallow")
    git(tmp_path, "clone", "-q", "--shared", str(root), "shared")
    for name in ("shallow", "shared"):
        jobs = one_job(BundleBuilder().edit("a.txt", OLD, b"x\n"))

        assert [land(jobs, tmp_path / name).outcome for _ in range(2)] == ["created", "before"]
        assert shown(tmp_path / name, "a.txt") == "x\n"


def test_a_repository_with_sha256(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.txt").write_bytes(OLD)
    (root / "b.txt").write_bytes(OLD)
    git(root, "init", "-q", "--object-format=sha256")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    made = BundleBuilder().edit("a.txt", OLD, b"x\n")

    report = land(one_job(made.delete("b.txt", made.file(OLD))), root)

    assert report.tip is not None
    assert len(report.tip) == 64
    assert git(root, "ls-tree", "--name-only", "new").split() == ["a.txt"]


@pytest.mark.parametrize(
    ("branch", "reason"),
    [
        ("main", "cannot be created"),
        ("main/x", "cannot be created"),
        ("a..b", "not a valid branch name"),
        ("-x", "not a valid branch name"),
        ("HEAD", "not a valid branch name"),
        ("x\ny", "not a valid branch name"),
    ],
)
def test_a_branch_that_cannot_be_is_refused_before(root: Path, branch: str, reason: str) -> None:
    before = tree_of(root)
    with pytest.raises(BranchUnusable, match=reason):
        require_branch(root, branch)
    assert tree_of(root) == before


def test_a_branch_that_can_be_leaves_no_trace_before(root: Path) -> None:
    before = state_of(root)
    assert require_branch(root, "feature/x") == git(root, "rev-parse", "HEAD").strip()
    assert state_of(root) == before
    assert git(root, "branch", "--format=%(refname:short)").split() == ["main"]


def test_no_repository_and_no_commit_are_said(tmp_path: Path) -> None:
    with pytest.raises(BranchUnusable, match="is in no Git repository"):
        require_branch(tmp_path, "x")
    git(tmp_path, "init", "-q")
    with pytest.raises(BranchUnusable, match="has no commit"):
        require_branch(tmp_path, "x")


def test_the_committer_is_the_person(root: Path) -> None:
    git(root, "config", "user.name", "Ann <x>\nB")
    git(root, "config", "user.email", "ann@example.org")

    land(one_job(BundleBuilder().edit("a.txt", OLD, b"x\n")), root)

    assert git(root, "log", "-1", "--format=%cn|%ce|%an", "new").strip() == (
        "Ann x B|ann@example.org|agent-of-root"
    )


def test_nothing_to_commit_makes_no_branch(root: Path) -> None:
    report = land(one_job(BundleBuilder().edit("a.txt", b"other\n", b"x\n")), root)

    assert (report.outcome, len(report.merge.conflicts)) == ("nothing", 1)
    assert git(root, "branch", "--format=%(refname:short)").split() == ["main"]


def test_a_name_that_is_no_utf_8_is_committed_renamed_and_reported_by_its_text(root: Path) -> None:
    for name in ("caf\udce9.txt", "sub/old\udcff"):
        (root / name).write_bytes(OLD)
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "second")
    version = BundleBuilder().file(OLD)
    bundle = (
        BundleBuilder()
        .edit(r"caf\xe9.txt", OLD, edited(OLD, b"one"))
        .rename(r"sub/old\xff", r"sub/new\xfe", version, version)
        .add("n\xf6.txt", version)
    )

    report = land(one_job(bundle), root)

    assert report.branch == "new"
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "-z", "--name-only", "new"],
        cwd=root,
        check=True,
        capture_output=True,
    ).stdout.split(b"\0")
    assert {b"caf\xe9.txt", b"sub/new\xfe", "nö.txt".encode()} <= set(listed)
    assert b"sub/old\xff" not in listed
    content = subprocess.run(
        ["git", "show", os.fsdecode(b"new:caf\xe9.txt")], cwd=root, check=True, capture_output=True
    ).stdout
    assert content == edited(OLD, b"one")


def test_a_conflict_in_a_name_that_is_no_utf_8_is_reported_by_its_text(root: Path) -> None:
    (root / "caf\udce9.txt").write_bytes(edited(OLD, b"two"))
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "second")
    line = OLD.replace(b"two", b"other")

    report = land(one_job(BundleBuilder().edit(r"caf\xe9.txt", OLD, line)), root)

    assert [one.path for one in report.conflicts] == [r"caf\xe9.txt"]
    report.merge.model_dump_json()
