"""Repositories that lean on something outside of the workspace: Git works in the snapshot."""

import asyncio
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.orchestrator.workspace.snapshots.index import SnapshotIndexes
from fanout.orchestrator.workspace.workspace import Workspace, WorkspaceUnusable

LINES = "one\ntwo\nthree\n"


def git(folder: Path, *arguments: str, check: bool = True) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    allowed = ("-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main")
    done = subprocess.run(
        ["git", *identity, *allowed, *arguments],
        cwd=folder,
        check=check,
        capture_output=True,
        env={"PATH": os.environ["PATH"], "HOME": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"},
        text=True,
    )
    return done.stdout + done.stderr


def repository(folder: Path, *options: str) -> Path:
    """A repository with two commits on main and one on another branch."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", *options)
    (folder / "a.txt").write_text(LINES)
    (folder / "sub/deep").mkdir(parents=True)
    (folder / "sub/b.txt").write_text(LINES)
    (folder / "sub/deep/c.txt").write_text(LINES)
    (folder / "rest").mkdir()
    (folder / "rest/d.txt").write_text("rest\n")
    (folder / ".gitignore").write_text("*.ignored\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "base")
    (folder / "a.txt").write_text(LINES + "four\n")
    git(folder, "commit", "-qam", "second")
    git(folder, "branch", "other", "HEAD~1")
    return folder


class Place:
    """A workspace, and what a sandbox gets of it."""

    def __init__(self, tmp_path: Path, root: Path) -> None:
        self.base = tmp_path
        self.root = root
        self.blobs = BlobStore(str(tmp_path / "blobs"))
        self.unpacked = 0

    async def snapshot(self, *, is_own: bool = True) -> tuple[Path, Workspace]:
        """Unpack a snapshot somewhere else."""
        workspace = Workspace(
            self.root,
            indexes=SnapshotIndexes(self.base / "indexes"),
            repositories=self.base / "repositories" if is_own else None,
        )
        archive = await self.blobs.fetch(await workspace.snapshot(self.blobs))
        self.unpacked += 1
        inside = self.base / f"inside-{self.unpacked}"
        await asyncio.to_thread(_unpack, archive, inside)
        return inside, workspace


def _unpack(archive: Path, inside: Path) -> None:
    with tarfile.open(archive) as opened:
        opened.extractall(inside, filter="tar")


def linked(base: Path) -> Path:
    repository(base / "main")
    git(base / "main", "worktree", "add", "-q", "-b", "wt", str(base / "tree"))
    return base / "tree"


def linked_of_bare(base: Path) -> Path:
    repository(base / "origin")
    git(base, "clone", "-q", "--bare", "origin", "bare")
    git(base / "bare", "worktree", "add", "-q", str(base / "tree"), "main")
    return base / "tree"


def detached_link(base: Path) -> Path:
    repository(base / "main")
    git(base / "main", "worktree", "add", "-q", "--detach", str(base / "tree"))
    return base / "tree"


def shared(base: Path) -> Path:
    repository(base / "main")
    git(base, "clone", "-q", "--shared", "main", "tree")
    return base / "tree"


def shared_twice(base: Path) -> Path:
    shared(base)
    git(base, "clone", "-q", "--shared", "tree", "again")
    return base / "again"


def referenced(base: Path) -> Path:
    repository(base / "main")
    git(base, "clone", "-q", "--reference", str(base / "main"), f"file://{base}/main", "tree")
    return base / "tree"


def separate_data(base: Path) -> Path:
    repository(base / "tree", f"--separate-git-dir={base / 'data'}")
    git(base / "tree", "config", "core.worktree", str(base / "tree"))
    return base / "tree"


def submodule_elsewhere(base: Path) -> Path:
    repository(base / "library")
    repository(base / "main")
    git(base / "main", "submodule", "add", "-q", str(base / "library"), "library")
    return base / "main/library"


def sha256(base: Path) -> Path:
    repository(base / "main", "--object-format=sha256")
    git(base / "main", "worktree", "add", "-q", "-b", "wt", str(base / "tree"))
    return base / "tree"


def shallow(base: Path) -> Path:
    repository(base / "main")
    git(base, "clone", "-q", "--depth", "1", f"file://{base}/main", "shallow")
    git(base / "shallow", "worktree", "add", "-q", "-b", "wt", str(base / "tree"))
    return base / "tree"


def split_index(base: Path) -> Path:
    tree = linked(base)
    git(tree, "update-index", "--split-index")
    return tree


def odd_name(base: Path) -> Path:
    return linked(base / 'odd "name": \\ with\nline')


KINDS = [
    linked,
    linked_of_bare,
    detached_link,
    shared,
    shared_twice,
    referenced,
    separate_data,
    submodule_elsewhere,
    sha256,
    shallow,
    split_index,
    odd_name,
]


@pytest.mark.parametrize("make", KINDS)
async def test_git_works_in_the_snapshot_as_at_home(tmp_path, make):
    root = await asyncio.to_thread(make, tmp_path)
    (root / "a.txt").write_text("changed\n")
    (root / "staged.txt").write_text("staged\n")
    git(root, "add", "staged.txt")
    (root / "x.ignored").write_text("1")
    asked = [("log", "--format=%H %s"), ("status", "--short"), ("diff",), ("diff", "--cached")]
    at_home = [git(root, *one) for one in asked]

    inside, workspace = await Place(tmp_path, root).snapshot()

    tmp_path.joinpath("main").exists() and tmp_path.joinpath("main").rename(tmp_path / "moved")
    assert [git(inside, *one) for one in asked] == at_home
    assert "second" in at_home[0]
    assert not (inside / "x.ignored").exists()
    git(inside, "commit", "-qam", "inside")
    git(inside, "fsck", "--strict")
    assert workspace.limits == ()


async def test_a_folder_in_a_repository_has_its_files_as_one_commit(tmp_path):
    await asyncio.to_thread(repository, tmp_path / "main")
    root = tmp_path / "main/sub"
    (root / "b.txt").write_text("changed\n")

    inside, workspace = await Place(tmp_path, root).snapshot()

    assert git(inside, "status", "--short") == " M b.txt\n"
    assert git(inside, "ls-files").split() == ["b.txt", "deep/c.txt"]
    assert "history" in git(inside, "log", "--format=%B", "main")
    git(inside, "commit", "-qam", "inside")
    everything = git(inside, "cat-file", "--batch-check", "--batch-all-objects")
    outside = git(tmp_path / "main", "rev-parse", "HEAD:rest/d.txt").strip()
    assert outside not in everything
    assert ["history" in limit for limit in workspace.limits] == [True]


async def test_a_folder_of_which_nothing_is_tracked_has_no_repository(tmp_path):
    await asyncio.to_thread(repository, tmp_path / "main")
    root = tmp_path / "main/new"
    root.mkdir()
    (root / "file").write_text("1")

    inside, workspace = await Place(tmp_path, root).snapshot()

    assert [path.name for path in inside.iterdir()] == ["file"]
    assert workspace.limits == ()


async def test_what_is_absent_in_a_sparse_checkout_is_not_deleted(tmp_path):
    await asyncio.to_thread(repository, tmp_path / "main")
    root = tmp_path / "main"
    git(root, "sparse-checkout", "set", "--cone", "--sparse-index", "sub")

    inside, workspace = await Place(tmp_path, root).snapshot()

    assert not (inside / "rest").exists()
    assert git(inside, "status", "--short") == ""
    assert git(inside, "sparse-checkout", "list").split() == ["sub"]
    assert workspace.limits == ()


@pytest.mark.parametrize("is_linked", [True, False])
async def test_a_partial_clone_commits_and_says_what_is_missing(tmp_path, is_linked):
    origin = await asyncio.to_thread(repository, tmp_path / "main")
    git(origin, "config", "uploadpack.allowFilter", "true")
    clone = ("clone", "-q", "--filter=blob:none", "--sparse", f"file://{origin}")
    git(tmp_path, *clone, "clone")
    root = tmp_path / "clone"
    if is_linked:
        git(root, "worktree", "add", "-q", "-b", "wt", str(tmp_path / "tree"))
        root = tmp_path / "tree"

    inside, workspace = await Place(tmp_path, root).snapshot()

    (inside / "a.txt").write_text("new\n")
    git(inside, "commit", "-qam", "inside")
    assert git(inside, "log", "--format=%s").splitlines() == ["inside", "second", "base"]
    assert git(inside, "status", "--short") == ""
    assert ["partial clone" in limit for limit in workspace.limits] == [True]


async def test_an_unchanged_repository_is_stored_once_and_a_new_commit_in_a_layer(tmp_path):
    root = await asyncio.to_thread(linked, tmp_path)
    (root / "filler").write_bytes(os.urandom(200_000))
    place = Place(tmp_path, root)
    _, workspace = await place.snapshot()
    first = await workspace.start_files(place.blobs)

    again = Workspace(
        root,
        indexes=SnapshotIndexes(tmp_path / "indexes"),
        repositories=tmp_path / "repositories",
    )
    assert await again.start_files(place.blobs) == first
    git(root, "add", ".")
    git(root, "commit", "-qm", "third")
    later = await again.start_files(place.blobs)
    assert later.snapshot == first.snapshot
    assert len(later.layers) == 1
    inside, _ = await place.snapshot()
    assert git(inside, "log", "--format=%s").splitlines() == ["third", "second", "base"]


async def test_a_branch_that_was_rewritten_is_followed(tmp_path):
    root = await asyncio.to_thread(linked, tmp_path)
    place = Place(tmp_path, root)
    await place.snapshot()
    git(root, "commit", "-q", "--amend", "-m", "amended")
    git(tmp_path / "main", "branch", "-D", "other")
    git(tmp_path / "main", "checkout", "-q", "--detach")
    git(tmp_path / "main", "update-ref", "-d", "refs/heads/main")
    git(tmp_path / "main", "reflog", "expire", "--expire=now", "--all")
    git(tmp_path / "main", "gc", "-q", "--prune=now")

    inside, workspace = await place.snapshot()

    assert git(inside, "log", "--format=%s").splitlines() == ["amended", "base"]
    git(inside, "fsck", "--strict")
    assert workspace.limits == ()


async def test_submodules_of_a_linked_work_tree_work(tmp_path):
    repository(tmp_path / "library")
    root = linked(tmp_path)
    git(root, "submodule", "add", "-q", str(tmp_path / "library"), "inner")
    git(root, "commit", "-qm", "submodule")

    inside, workspace = await Place(tmp_path, root).snapshot()

    (tmp_path / "main").rename(tmp_path / "moved")
    assert git(inside, "status", "--short") == ""
    assert "second" in git(inside / "inner", "log", "--format=%s")
    assert workspace.limits == ()


async def test_submodules_of_an_ordinary_repository_still_work(tmp_path):
    repository(tmp_path / "library")
    root = repository(tmp_path / "main")
    git(root, "submodule", "add", "-q", str(tmp_path / "library"), "inner")
    git(root, "config", "--unset", "submodule.inner.active")  # as of a recursive clone

    inside, workspace = await Place(tmp_path, root).snapshot()

    assert "second" in git(inside / "inner", "log", "--format=%s")
    assert git(inside, "submodule", "status") == git(root, "submodule", "status")
    assert "Entering 'inner'" in git(inside, "submodule", "foreach", "git status")
    assert workspace.limits == ()


async def test_a_work_tree_in_the_folder_of_its_bare_repository_works(tmp_path):
    repository(tmp_path / "origin")
    root = tmp_path / "project"
    root.mkdir()
    git(root, "clone", "-q", "--bare", str(tmp_path / "origin"), ".bare")
    (root / ".git").write_text("gitdir: ./.bare\n")

    inside, workspace = await Place(tmp_path, root).snapshot()

    assert git(inside, "log", "--format=%s", "main").splitlines() == ["second", "base"]
    assert workspace.limits == ()


def dangling(folder: Path) -> None:
    (folder / ".git").write_text("gitdir: ../.git/modules/gone\n")


def dangling_link(folder: Path) -> None:
    (folder / ".git").symlink_to("/nowhere/at/all")


def empty_data(folder: Path) -> None:
    (folder / ".git").mkdir()


def no_pointer(folder: Path) -> None:
    (folder / ".git").write_bytes(b"\0nonsense\xff")


@pytest.mark.parametrize("break_", [dangling, dangling_link, empty_data, no_pointer])
async def test_tracked_files_below_a_broken_git_file_are_carried(tmp_path, break_):
    root = await asyncio.to_thread(repository, tmp_path / "main")
    (root / "sub/x.ignored").write_text("1")
    (root / "sub/tracked.ignored").write_text("1")
    git(root, "add", "-f", "sub/tracked.ignored")
    git(root, "commit", "-qm", "third")
    break_(root / "sub")

    inside, workspace = await Place(tmp_path, root).snapshot()

    found = sorted(path.name for path in (inside / "sub").rglob("*") if path.is_file())
    assert found == ["b.txt", "c.txt", "tracked.ignored"]
    assert git(inside, "status", "--short") == ""
    assert workspace.skipped == ()


@pytest.mark.parametrize("break_", [dangling, dangling_link, empty_data, no_pointer])
async def test_a_workspace_whose_own_git_file_is_broken_is_carried_with_a_sentence(
    tmp_path, break_
):
    root = tmp_path / "root"
    root.mkdir()
    (root / ".gitignore").write_text("*.ignored\n")
    (root / "a.txt").write_text("1")
    (root / "x.ignored").write_text("1")
    break_(root)

    inside, workspace = await Place(tmp_path, root).snapshot()

    assert (inside / "a.txt").exists()
    assert not (inside / ".git/HEAD").exists()
    assert not (inside / "x.ignored").exists()
    assert len(workspace.limits) == 1
    assert str(root) in workspace.limits[0]


async def test_files_of_a_submodule_whose_data_is_gone_are_carried_by_its_own_rules(tmp_path):
    repository(tmp_path / "library")
    root = repository(tmp_path / "main")
    git(root, "submodule", "add", "-q", str(tmp_path / "library"), "inner")
    git(root, "commit", "-qm", "submodule")
    (root / ".git/modules/inner").rename(tmp_path / "gone")
    (root / "inner/x.ignored").write_text("1")

    inside, workspace = await Place(tmp_path, root).snapshot()

    assert (inside / "inner/a.txt").exists()
    assert not (inside / "inner/x.ignored").exists()
    assert ["inner" in limit for limit in workspace.limits] == [True]


async def test_a_nested_repository_with_a_damaged_index_keeps_its_files(tmp_path):
    root = repository(tmp_path / "main")
    nested = repository(root / "nested")
    (nested / ".git/index").write_bytes(b"DIRC broken")
    (nested / "x.ignored").write_text("1")

    inside, workspace = await Place(tmp_path, root).snapshot()

    assert (inside / "nested/a.txt").exists()
    assert not (inside / "nested/x.ignored").exists()
    assert ["nested" in limit for limit in workspace.limits] == [True]


async def test_objects_that_a_clone_cannot_borrow_any_more_cost_no_file(tmp_path):
    root = await asyncio.to_thread(shared, tmp_path)
    (tmp_path / "main").rename(tmp_path / "moved")

    inside, workspace = await Place(tmp_path, root).snapshot()

    assert (inside / "a.txt").exists()
    assert ["does not work" in limit for limit in workspace.limits] == [True]


@pytest.mark.parametrize("is_linked", [True, False])
@pytest.mark.parametrize(
    ("command", "name"), [("rebase main", "rebase"), ("bisect start", "bisection")]
)
async def test_what_git_is_in_the_middle_of_is_named(tmp_path, is_linked, command, name):
    root = await asyncio.to_thread(linked if is_linked else shared, tmp_path)
    git(root, "checkout", "-qb", "topic", "HEAD~1")
    (root / "a.txt").write_text("topic\n")
    git(root, "commit", "-qam", "topic")
    git(root, *command.split(), check=False)

    inside, workspace = await Place(tmp_path, root).snapshot()

    (limit,) = workspace.limits
    assert limit.startswith(f"{root} is in the middle of a {name}")
    assert git(inside, "status", "--short") == git(root, "status", "--short")


async def test_references_that_git_239_cannot_read_are_named(tmp_path):
    root = repository(tmp_path / "main")
    git(root, "config", "core.repositoryformatversion", "1")
    with (root / ".git/config").open("a") as file:
        file.write("[extensions]\n\trefStorage = reftable\n")

    _, workspace = await Place(tmp_path, root).snapshot()

    assert ["reftable" in limit for limit in workspace.limits] == [True]


async def test_submodules_of_a_clone_that_borrows_objects_work(tmp_path):
    repository(tmp_path / "library")
    root = shared(tmp_path)
    git(root, "submodule", "add", "-q", str(tmp_path / "library"), "inner")

    inside, workspace = await Place(tmp_path, root).snapshot()

    assert "second" in git(inside / "inner", "log", "--format=%s")
    assert workspace.limits == ()


async def test_for_a_work_tree_that_was_moved_the_sentence_says_how_git_repairs_it(tmp_path):
    root = linked(tmp_path).rename(tmp_path / "moved")
    place = Place(tmp_path, root)

    inside, workspace = await place.snapshot()

    assert (inside / "a.txt").exists()
    (limit,) = workspace.limits
    repair = limit.rstrip(".").rpartition("git -C ")[2].split()
    git(tmp_path, "-C", *repair)
    inside, workspace = await place.snapshot()
    assert workspace.limits == ()
    assert "second" in git(inside, "log")


async def test_a_linked_work_tree_in_its_own_repository_keeps_its_files(tmp_path):
    root = repository(tmp_path / "main")
    git(root, "worktree", "add", "-q", "-b", "wt", "trees/wt")

    inside, workspace = await Place(tmp_path, root).snapshot()

    assert (inside / "trees/wt/a.txt").exists()
    assert ["trees/wt" in limit for limit in workspace.limits] == [True]


PRIVATE = "private-91c4"


@pytest.fixture
def private(tmp_path):
    """Another repository of the same person, which no workspace may draw from."""
    private = repository(tmp_path / "private")
    (private / "key.txt").write_text(PRIVATE)
    git(private, "add", ".")
    git(private, "commit", "-qm", PRIVATE)
    return private


def named_as_data(root: Path, private: Path) -> None:
    (root / ".git").write_text(f"gitdir: {private}/.git\n")


def linked_as_data(root: Path, private: Path) -> None:
    (root / ".git").symlink_to(private / ".git")


def named_as_work_tree(root: Path, private: Path) -> None:
    git(private, "worktree", "add", "-q", str(private.parent / "real"))
    (root / ".git").write_text(f"gitdir: {private}/.git/worktrees/real\n")


def borrowed_with_links(name: str):
    def plant(root: Path, private: Path) -> None:
        git(root, "init", "-q")
        (root / ".git/objects/info").mkdir(exist_ok=True)
        (root / ".git/objects/info/alternates").write_text(f"{private}/.git/objects\n")
        (root / ".git" / name).rename(root / "aside") if (root / ".git" / name).exists() else None
        (root / ".git" / name).symlink_to(private / ".git" / name)

    return plant


def borrowed_alone(root: Path, private: Path) -> None:
    git(root, "init", "-q")
    (root / ".git/objects/info").mkdir(exist_ok=True)
    (root / ".git/objects/info/alternates").write_text(f"{private}/.git/objects\n")


def common_data(root: Path, private: Path) -> None:
    git(root, "init", "-q")
    (root / ".git/commondir").write_text(f"{private}/.git\n")


ATTACKS = [
    named_as_data,
    linked_as_data,
    named_as_work_tree,
    *map(borrowed_with_links, ("refs", "HEAD", "index", "packed-refs", "refs/heads", "objects")),
    borrowed_alone,
    common_data,
]


def everything_in(folder: Path) -> str:
    """All files, and all objects of all packs."""
    texts = [path.read_bytes().decode("latin-1") for path in folder.rglob("*") if path.is_file()]
    for pack in folder.rglob("*.idx"):
        subprocess.run(["git", "init", "-q", "scan"], cwd=folder, check=True)
        objects = pack.parent.parent
        listed = subprocess.run(
            ["git", "cat-file", "--batch-all-objects", "--batch"],
            cwd=folder / "scan",
            env={"PATH": os.environ["PATH"], "GIT_OBJECT_DIRECTORY": str(objects)},
            capture_output=True,
            check=True,
        )
        texts.append(listed.stdout.decode("latin-1"))
    return "".join(texts)


@pytest.mark.parametrize("depth", ["", "nested"])
@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_workspace_cannot_name_another_repository_as_its_own(
    tmp_path, private, attack, is_own, depth
):
    root = tmp_path / "root"
    (root / depth).mkdir(parents=True)
    (root / depth / "a.txt").write_text("1")
    if depth:
        git(root, "init", "-q")
    attack(root / depth, private)

    try:
        inside, _ = await Place(tmp_path, root).snapshot(is_own=is_own)
    except WorkspaceUnusable:
        return
    assert (inside / depth / "a.txt").exists()
    assert PRIVATE not in everything_in(inside)


def test_the_attack_would_be_seen(tmp_path, private):
    git(private, "repack", "-adq")
    assert PRIVATE in everything_in(private)


async def test_an_upload_takes_nothing_from_a_repository_of_the_service(tmp_path):
    root = await asyncio.to_thread(linked, tmp_path)

    inside, workspace = await Place(tmp_path, root).snapshot(is_own=False)

    assert (inside / "a.txt").exists()
    assert not (inside / ".git").exists()
    assert ["leads out" in limit for limit in workspace.limits] == [True]


async def test_a_copy_that_was_not_used_for_long_is_removed(tmp_path):
    root = await asyncio.to_thread(linked, tmp_path)
    place = Place(tmp_path, root)
    await place.snapshot()
    (copy,) = (tmp_path / "repositories").iterdir()
    old = tmp_path / "repositories/old"
    old.mkdir()
    os.utime(old, (0, 0))

    await place.snapshot()

    assert [path.name for path in (tmp_path / "repositories").iterdir()] == [copy.name]


async def test_a_name_that_is_no_text_is_said_as_text(tmp_path):
    root = repository(tmp_path / "main")
    nested = root / os.fsdecode(b"odd\xff")
    nested.mkdir()
    (nested / "a.txt").write_text("1")
    dangling(nested)

    inside, workspace = await Place(tmp_path, root).snapshot()

    assert (inside / nested.name / "a.txt").exists()
    assert ["odd\\xff" in limit for limit in workspace.limits] == [True]
