"""Repositories with data outside of the workspace, and self-contained copies of that data.

The data of a linked work tree, of a submodule whose superproject is elsewhere, of a clone that
borrows objects (`git clone --shared`) and of a folder inside of a repository cannot be carried file
by file. Git packs what the references, HEAD and the index reach into a copy, which a snapshot
carries as `.git`. References in the workspace alone are not trusted: data elsewhere must name
the folder as its work tree, and of borrowed objects only those that are reached are copied.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ...git.process import GitFailed, run_git
from ...private_files import make_private_folder
from .commits import Commits, open_commits
from .configuration import (
    RepositoryUnreadable,
    parse_configuration,
    read_data,
)
from .git_data import (
    WORK_TREE_CONFIGURATION,
    fresh_configuration,
)
from .repository import (
    MAX_INDEX_BYTES,
    Repository,
    head_commit,
    private_configuration,
)

PACK_SECONDS = 600.0
"""The time for the objects of a repository of some gigabytes on a slow disk."""

MAX_PACKS = 20
"""The most packs of one copy: each change of the references adds one; then one new pack replaces
all."""

_KEPT_SECONDS = 30 * 24 * 3600
"""The time after which an unused copy is removed: the next snapshot makes it again."""

_HEADS = ("HEAD", "ORIG_HEAD", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD")
_UNDER_WAY = {
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
    "sequencer": "cherry-pick or revert of several commits",
    "BISECT_LOG": "bisection",
}
"""File of a repository's data -> what Git keeps in it. No snapshot has these: they may name
programs that Git starts."""
_OBJECT_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_BRANCH = re.compile(r"ref: (refs/heads/\S+)")
_REACHED = "reached"
"""The file of a copy that lists what its packs were made from; a snapshot does not carry it."""


@dataclass(frozen=True)
class DataCopy:
    """A copy of a repository's data."""

    folder: Path
    note: str | None = None
    """What Git cannot do with it, in one sentence."""


def is_self_contained(repository: Repository, folder: Path) -> bool:
    """Return whether all data of a folder's repository is in the folder's own `.git`."""
    git_dir = folder / ".git"
    if repository.git_dir != git_dir or repository.common_dir != git_dir or git_dir.is_symlink():
        return False
    if any((git_dir / name).is_symlink() for name in ("objects", "refs")):
        return False
    return not read_data(git_dir / "objects/info/alternates").strip()


def find_limits(repository: Repository) -> str | None:
    """Return what Git cannot do with a repository's data inside a sandbox, in a sentence or two."""
    work_tree = repository.work_tree
    settings = parse_configuration(read_data(repository.common_dir / "config"))
    limits = []
    if settings.get("extensions.refstorage", "files") != "files":
        limits.append(
            f"{work_tree} stores its references as "
            f"{settings['extensions.refstorage']}: Git in a sandbox reads them from version 2.45 on."
        )
    if _is_partial(settings):
        limits.append(
            f"{work_tree} is a partial clone: objects that were not fetched are missing, "
            "so Git shows the commits, but fails at contents that only older commits have."
        )
    if under_way := [
        name for file, name in _UNDER_WAY.items() if os.path.lexists(repository.git_dir / file)
    ]:
        limits.append(
            f"{work_tree} is in the middle of a {under_way[0]}, which stays here: Git in a sandbox "
            "cannot continue or end it, and shows the files as they are now."
        )
    return " ".join(limits) or None


class DataCopies:
    """The copies of a machine, each of which is updated when its repository has changed.

    Args:
        folder: A private folder, which is created when it is needed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def copy(self, repository: Repository, folder: Path) -> DataCopy | None:
        """Return a copy of the data of a folder's repository; blocks.

        Args:
            repository: The repository that Git finds for the folder.
            folder: Its work tree, or a folder in it. The copy of such a folder has one commit with
                the folder's files, and no history.

        Returns:
            None if the folder is not its work tree, and none of its files are tracked.

        Raises:
            RepositoryUnreadable: It cannot be copied; the text says why.
        """
        folder = folder.resolve()
        _require_trusted(repository)
        self._remove_old()
        place = self._folder / hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]
        try:
            with _locked(place), open_commits(repository) as commits:
                return _Copying(repository, commits, folder, place).run()
        except OSError as error:
            raise RepositoryUnreadable(f"{place} cannot be written ({error.strerror})") from error

    def _remove_old(self) -> None:
        """Remove the copies that no snapshot has needed for a long time."""
        with suppress(OSError):
            for place in self._folder.iterdir():
                if place.stat().st_mtime < time.time() - _KEPT_SECONDS:
                    shutil.rmtree(place, ignore_errors=True)


def _require_trusted(repository: Repository) -> None:
    """Require that data elsewhere belongs to the work tree, and that data in it has no links.

    Raises:
        RepositoryUnreadable: It is not so; the text says what to do.
    """
    work_tree, git_dir = repository.work_tree, repository.git_dir
    if git_dir == work_tree / ".git" and not git_dir.is_symlink():
        if repository.common_dir != git_dir or any(_links(git_dir)):
            raise RepositoryUnreadable(f"{git_dir} has symlinks to data elsewhere")
        return
    named = os.fsdecode(read_data(git_dir / "gitdir")).strip()
    own = parse_configuration(read_data(git_dir / "config")).get("core.worktree", "")
    places = [(git_dir / named).parent] if named else []
    places += [git_dir / own] if own else []
    if work_tree.resolve() not in (place.resolve() for place in places):
        # Of a linked work tree, `config` would change the configuration that all of them share.
        is_linked = repository.common_dir != git_dir
        remedy = (
            f"git -C {work_tree} worktree repair"
            if is_linked
            else f"git --git-dir {git_dir} config core.worktree {work_tree}"
        )
        raise RepositoryUnreadable(
            f"{git_dir} does not name {work_tree} as its work tree; if it is: {remedy}"
        )


def _links(git_dir: Path) -> Iterator[Path]:
    """Yield the symlinks through which data of a repository would be read."""
    names = (*_HEADS, "packed-refs", "index", "shallow", "config", "info", "objects", "refs")
    yield from filter(Path.is_symlink, (git_dir / name for name in names))
    for above, folders, files in os.walk(git_dir / "refs"):
        yield from filter(Path.is_symlink, (Path(above, name) for name in (*folders, *files)))


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Hold the right to change a copy: two processes may make the same one."""
    make_private_folder(place)
    os.utime(place)  # it is in use
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class _Copying:
    """One update of a copy. Git works in a private directory and writes the copy's objects."""

    def __init__(self, repository: Repository, commits: Commits, folder: Path, place: Path) -> None:
        self._repository = repository
        self._commits = commits
        self._folder = folder
        self._place = place
        self._is_partial = _is_partial(commits.settings)
        inner = folder.relative_to(repository.work_tree.resolve()).as_posix()
        self._prefix = "" if inner == "." else f"{inner}/"

    def run(self) -> DataCopy | None:
        """Bring the copy up to date."""
        for name in ("objects/pack", "refs", "info"):
            (self._place / name).mkdir(parents=True, exist_ok=True)
        note = find_limits(self._repository)
        with self._private_place() as private:
            if self._prefix:
                files = self._files_of_folder(private)
                note = (
                    f"{self._folder} is a folder of the repository {self._repository.work_tree}: "
                    "Git works in it on one commit with its files; the history stays here."
                )
            else:
                files = self._files_of_work_tree(private)
            if files is None:
                return None
            self._pack(private, files)
            files["index"] = read_data(private / "index", MAX_INDEX_BYTES)
        for path in (*_HEADS, "packed-refs", "shallow", "config.worktree", "info/exclude",
                     "info/sparse-checkout", "config", "index"):  # fmt: skip
            self._write(path, files.get(path))
        return DataCopy(self._place, note)

    def _files_of_work_tree(self, private: Path) -> dict[str, bytes]:
        """Return the files of the data besides objects, and put the index into a private place."""
        git_dir, common_dir = self._repository.git_dir, self._repository.common_dir
        files = {name: read_data(git_dir / name) for name in _HEADS}
        listing = ("for-each-ref", "--format=%(objectname) %(refname)")
        files["packed-refs"] = self._commits.git(*listing)
        files["shallow"] = read_data(common_dir / "shallow")
        files["info/exclude"] = read_data(common_dir / "info/exclude")
        files["info/sparse-checkout"] = read_data(git_dir / "info/sparse-checkout")
        files["config.worktree"] = read_data(git_dir / "config.worktree")
        configuration = read_data(common_dir / "config")
        files["config"] = fresh_configuration(configuration, without=WORK_TREE_CONFIGURATION)
        self._copy_index(private)
        if (private / "index").exists():  # a split index would need its other file
            self._git(private, "update-index", "--no-split-index")
        return files

    def _files_of_folder(self, private: Path) -> dict[str, bytes] | None:
        """Return the data of a repository that has one commit with a folder's files."""
        head = head_commit(self._repository)
        tree = head and self._tree_of_folder(head)
        entries, absent = self._index_of_folder()
        if not (tree or entries):
            return None
        self._git(private, "read-tree", "--empty")
        self._git(private, "update-index", "-z", "--index-info", stdin=b"".join(entries))
        skipping = ("update-index", "--skip-worktree", "-z", "--stdin")
        self._git(private, *skipping, stdin=b"".join(path + b"\0" for path in absent))
        found = _BRANCH.match(os.fsdecode(read_data(self._repository.git_dir / "HEAD")))
        branch = found[1] if found else "refs/heads/main"
        configuration = read_data(self._repository.common_dir / "config")
        files = {
            "HEAD": f"ref: {branch}\n".encode(),
            "config": fresh_configuration(configuration, without=WORK_TREE_CONFIGURATION),
        }
        if head and tree:
            commit = self._commit_of_folder(private, head, tree)
            files["packed-refs"] = f"{commit} {branch}\n".encode()
        return files

    def _tree_of_folder(self, head: str) -> str:
        asking = ("rev-parse", "--verify", "--quiet", f"{head}:{self._prefix.rstrip('/')}")
        return self._commits.git(*asking, accepted=(0, 1, 128)).decode().strip()

    def _commit_of_folder(self, private: Path, head: str, tree: str) -> str:
        when = self._commits.git("log", "-1", "--no-show-signature", "--format=%ct", head, "--")
        person = f"fanout <fanout@fanout.invalid> {int(when)} +0000"
        content = (
            f"tree {tree}\nauthor {person}\ncommitter {person}\n\n"
            f"The files of {self._prefix} at {head}\n\n"
            "The history of this folder is not in this repository.\n"
        )
        writing = ("hash-object", "-t", "commit", "-w", "--stdin")
        written = self._git(private, *writing, stdin=content.encode("utf-8", "replace"))
        return written.decode().strip()

    def _index_of_folder(self) -> tuple[list[bytes], list[bytes]]:
        """Return the entries below the folder, and the paths of those that are not checked out."""
        prefix = os.fsencode(self._prefix)
        with self._private_place() as private:
            self._copy_index(private)
            listed = self._git(private, "ls-files", "--stage", "-t", "-z")
        entries, absent = [], []
        for line in filter(None, listed.split(b"\0")):
            head, _, path = line.partition(b"\t")
            tag, _, fields = head.partition(b" ")
            if path.startswith(prefix):
                own = path.removeprefix(prefix)
                entries.append(fields + b"\t" + own + b"\0")
                absent += [own] if tag == b"S" else []
        return entries, absent

    @contextmanager
    def _private_place(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="fanout-git-") as name:
            private = Path(name)
            (private / "refs").mkdir()
            (private / "HEAD").write_text("ref: refs/heads/none\n")
            (private / "config").write_text(private_configuration(self._commits.settings))
            if shallow := read_data(self._repository.common_dir / "shallow"):
                (private / "shallow").write_bytes(shallow)
            yield private

    def _copy_index(self, private: Path) -> None:
        git_dir = self._repository.git_dir
        for path in (git_dir / "index", *git_dir.glob("sharedindex.*")):
            if content := read_data(path, MAX_INDEX_BYTES):
                (private / path.name).write_bytes(content)

    def _pack(self, private: Path, files: Mapping[str, bytes]) -> None:
        """Add a pack with what is reached and not in the copy's packs yet."""
        tips = {*_read_ids(files)}
        index = hashlib.sha256(read_data(private / "index", MAX_INDEX_BYTES)).hexdigest()
        reached = "\n".join([f"index {index}", *sorted(tips)])
        listed, packs = self._place / _REACHED, self._place / "objects/pack"
        before = read_data(listed, MAX_INDEX_BYTES).decode()
        if before == reached:
            return
        known = before.splitlines()[1:]
        is_whole = not known or len(list(packs.glob("*.pack"))) >= MAX_PACKS
        if not is_whole:
            try:
                self._pack_objects(private, [*tips, *(f"^{one}" for one in known)])
            except RepositoryUnreadable:  # objects that were reached before are gone
                is_whole = True
        if is_whole:
            old = list(packs.iterdir())
            listed.unlink(missing_ok=True)
            made = self._pack_objects(private, sorted(tips))
            for path in old:
                if path.stem != made:
                    path.unlink(missing_ok=True)
        for loose in (self._place / "objects").glob("[0-9a-f][0-9a-f]"):
            shutil.rmtree(loose)
        listed.write_text(reached)

    def _pack_objects(self, private: Path, tips: Sequence[str]) -> str:
        """Write a pack, and return its name without an ending; empty without objects."""
        options = ["--missing=allow-any"] if self._is_partial else []
        output = self._git(
            private,
            "pack-objects", "--quiet", "--revs", "--indexed-objects", "--delta-base-offset",
            "--non-empty", *options, str(self._place / "objects/pack/pack"),
            stdin="".join(f"{tip}\n" for tip in tips).encode(),
        )  # fmt: skip
        name = f"pack-{output.decode().strip()}" if output.strip() else ""
        if self._is_partial:
            for pack in (self._place / "objects/pack").glob("*.pack"):
                pack.with_suffix(".promisor").touch()
        return name

    def _git(self, private: Path, *arguments: str, stdin: bytes = b"") -> bytes:
        try:
            return run_git(
                arguments,
                folder=private,
                git_dir=private,
                objects=self._place / "objects",
                borrowed=self._repository.common_dir / "objects",
                settings=["core.splitIndex=false"],
                stdin=stdin,
                seconds=PACK_SECONDS,
            )[1]
        except GitFailed as error:
            raise RepositoryUnreadable(str(error)) from error

    def _write(self, path: str, content: bytes | None) -> None:
        """Replace a file of the copy if its content differs."""
        target = self._place / path
        if not content:
            target.unlink(missing_ok=True)
        elif read_data(target, MAX_INDEX_BYTES) != content:
            draft = target.with_name(f"{target.name}.new")
            draft.write_bytes(content)
            draft.replace(target)


def _read_ids(files: Mapping[str, bytes]) -> Iterator[str]:
    """Yield the ids of the objects that references and heads name."""
    for name in (*_HEADS, "packed-refs"):
        for word in os.fsdecode(files.get(name, b"")).split():
            if _OBJECT_ID.fullmatch(word):
                yield word


def _is_partial(settings: Mapping[str, str]) -> bool:
    """Return whether a repository fetches some objects only when it needs them."""
    return "extensions.partialclone" in settings or any(
        value == "true" and name.startswith("remote.") and name.endswith(".promisor")
        for name, value in settings.items()
    )
