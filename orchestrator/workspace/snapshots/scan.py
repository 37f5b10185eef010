"""The files of a snapshot.

Files that Git ignores are left out, and so are secrets: files whose name or content says that they
are (`secret_files.py`), unless a person asks for them by name. A repository's own data is a
selection (`git_data.py`). `archive.py` writes the files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, Self

from ...jobs.changes import SkippedFile
from ...path_text import path_text
from ..repositories.configuration import RepositoryUnreadable
from ..repositories.git_data import is_carried, is_git_directory
from ..repositories.self_contained import DataCopies
from ..rooted import PathRefused, open_below, opened, step_into
from ..secret_files import secret_name
from .git_view import GitView, Seen

_MAX_OPEN = 64
"""The most nested folders that stay open: real trees are less deep, and a process may have 1,024
files."""
BY_PRODUCTS = frozenset(
    {"__pycache__", ".venv", "node_modules", ".pytest_cache", ".mypy_cache", ".ruff_cache"},
)
"""The folders that are left out where no Git repository has ignore rules, like `*.pyc` files."""

LeftOut = Callable[[str, str], bool]
"""Takes a path and its last name; returns whether the snapshot leaves it out."""


class OpenFolders:
    """The last folder that was opened below a root, and those above it. No symlink is followed.

    Args:
        root: The root.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._open: list[tuple[str, int]] = []
        """Prefix of the paths in it, and descriptor; the deepest last."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            os.close(self._open.pop()[1])

    def opened(self, path: str) -> int:
        """Return the descriptor of a folder, which stays open until the next call.

        Raises:
            PathRefused: The path goes through a symlink.
            OSError: As `os.open` does.
        """
        wanted = f"{path}/" if path else ""
        while self._open and not wanted.startswith(self._open[-1][0]):
            os.close(self._open.pop()[1])
        if not self._open:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            self._open.append(("", os.open(self._root, flags)))
        prefix, descriptor = self._open[-1]
        for name in wanted[len(prefix) :].split("/")[:-1]:
            below, prefix = step_into(descriptor, name), f"{prefix}{name}/"
            if len(self._open) == _MAX_OPEN:
                os.close(self._open.pop()[1])
            self._open.append((prefix, below))
            descriptor = below
        return descriptor


class IgnoreRulesUnreadable(Exception):
    """Git could not list the files that it ignores, so that a snapshot might contain secrets."""


class ScannedEntry(NamedTuple):
    """A path with the result of `lstat`: an equal later entry means an unchanged file."""

    path: str
    mode: int
    size: int = 0
    stamp: tuple[int, int, int] = (0, 0, 0)
    """Inode, modification and change time; zeros for a directory, which is compared by entries."""
    git_dir: str | None = None
    """The folder of the repository whose own data it belongs to; None for the work tree."""

    @property
    def path_in_data(self) -> str:
        """Its path in that folder."""
        return self.path.removeprefix(f"{self.git_dir}/") if self.git_dir else self.path


@dataclass(frozen=True)
class Tree:
    """The contents of a folder at one time, sorted by path."""

    entries: tuple[ScannedEntry, ...]
    skipped: tuple[SkippedFile, ...]
    left_at_home: tuple[SkippedFile, ...] = ()
    """Files and folders that are secret by their name."""
    included: frozenset[str] = frozenset()
    """The files that a person asked for by name."""
    limits: tuple[str, ...] = ()
    """What Git cannot do with the files, a sentence each."""
    copies: Mapping[str, Path] = field(default_factory=dict, compare=False)
    """The copies of repositories' data, by their folders in the snapshot."""

    @property
    def size_bytes(self) -> int:
        """The sum of all file sizes."""
        return sum(entry.size for entry in self.entries)


@dataclass(frozen=True)
class _Folder:
    """A folder to list."""

    path: str
    left_out: LeftOut | None
    """The rule of the folder for omitted files; None: not known yet."""
    git_dir: str | None = None
    """The repository whose own data the folder belongs to; None: it is part of the work tree."""

    def below(self, name: str) -> str:
        """Return the path of an entry."""
        return f"{self.path}/{name}" if self.path else name


@dataclass
class _Walk:
    root: Path
    included: frozenset[str]
    git: GitView
    known: Mapping[str, ScannedEntry] = field(default_factory=dict)
    """The entries that an earlier walk with the same `included` found, by path."""
    entries: list[ScannedEntry] = field(default_factory=list)
    skipped: list[SkippedFile] = field(default_factory=list)
    left_at_home: list[SkippedFile] = field(default_factory=list)
    pending: list[_Folder] = field(default_factory=list)
    undecided: list[tuple[_Folder, str, os.stat_result]] = field(default_factory=list)
    """The entries that wait for the rules about what is left out."""

    def begin(self, left_out: LeftOut | None) -> None:
        """List the folder; without rules, only known entries of the same kind."""
        self.pending.append(_Folder("", left_out))
        self._list_pending()

    def finish(self, left_out: LeftOut) -> Tree:
        """Add the undecided entries, and return the result."""
        for folder, name, status in self.undecided:
            self._add(replace(folder, left_out=left_out), name, status)
        self._list_pending()
        self._add_included()
        for git_dir, copy in self.git.copied.items():
            self._add_copy(git_dir, copy)
        return Tree(
            tuple(sorted(self.entries, key=itemgetter(0))),
            tuple(sorted(self.skipped, key=lambda file: file.path)),
            tuple(sorted(self.left_at_home, key=lambda file: file.path)),
            self.included,
            tuple(sorted(set(map(path_text, self.git.limits)))),
            dict(self.git.copied),
        )

    def _list_pending(self) -> None:
        with OpenFolders(self.root) as folders:
            while self.pending:
                folder = self.pending.pop()
                try:
                    self._list(folder, folders.opened(folder.path))
                except (FileNotFoundError, PathRefused):
                    continue  # it was removed, or became a link, since it was listed
                except OSError as error:
                    self.skipped.append(unreadable(folder.path or ".", error))

    def _list(self, folder: _Folder, descriptor: int) -> None:
        with os.scandir(descriptor) as listing:
            items = list(listing)
        folder = self._entered(folder, {item.name for item in items})
        prefix, git_dir, left_out = folder.below(""), folder.git_dir, folder.left_out
        for item in items:
            name = item.name
            if name == ".git" and folder.path in self.git.not_carried:
                continue
            try:
                status = item.stat(follow_symlinks=False)
            except FileNotFoundError:  # removed since it was listed
                continue
            known = self.known.get(prefix + name)
            if known and known[1] == status.st_mode and known[4] == git_dir and left_out is None:
                self._add_known(known, status)
            elif left_out is None and git_dir is None:
                self.undecided.append((folder, name, status))
            else:
                self._add(folder, name, status)

    def _add_known(self, known: ScannedEntry, status: os.stat_result) -> None:
        """Add an entry that the rules for names and kinds have accepted before."""
        path, mode, size, stamp, git_dir = known
        if stat.S_ISDIR(mode):
            self.pending.append(_Folder(path, None, git_dir))
        elif size != status.st_size or stamp != _stamp(status):
            known = _file_entry(path, status, git_dir)
        self.entries.append(known)

    def _entered(self, folder: _Folder, names: Collection[str]) -> _Folder:
        """Return a folder with the rules that apply in it, which a repository may add."""
        in_data = folder.git_dir is not None
        if is_git_directory(folder.path.rpartition("/")[2], names):
            return _Folder(folder.path, folder.left_out, folder.path)
        if folder.path and ".git" in names and not in_data:
            return _Folder(folder.path, self._nested_rules(folder))
        return folder

    def _nested_rules(self, folder: _Folder) -> LeftOut | None:
        """Return the rules of a folder with a `.git`; those that hold around it if that is none.

        A repository that cannot be read costs no file: what rules in the folder name is left out.
        """
        path = folder.path
        try:
            seen = self.git.look(path)
            repository = seen.repository
            if repository and repository.work_tree != (self.root / path).resolve():
                return folder.left_out
            if self.git.is_listed_above(path, seen.problem):
                self.git.say(path, seen.problem or "")
                return folder.left_out
            return _ignored(self.git.ignored(path, seen) or frozenset(), f"{path}/")
        except RepositoryUnreadable as error:
            return self._read_rules(path, error)

    def _read_rules(self, path: str, problem: RepositoryUnreadable) -> LeftOut:
        try:
            return _ignored(self.git.ignored(path, Seen(problem=str(problem))) or (), f"{path}/")
        except RepositoryUnreadable as error:
            reason = f"Git cannot list the files that it ignores: {error}."
            self.skipped.append(SkippedFile(path=path_text(path), reason=reason))
            return _everything

    def _add_copy(self, git_dir: str, copy: Path) -> None:
        """Add the data of a repository from its copy."""
        self.entries.append(ScannedEntry(git_dir, os.lstat(copy).st_mode, git_dir=git_dir))
        for above, folders, files in os.walk(copy):
            inner = Path(above).relative_to(copy)
            for name in (*folders, *files):
                path = (inner / name).as_posix()
                status = os.lstat(Path(above, name))
                is_folder = stat.S_ISDIR(status.st_mode)
                if not is_carried(path, is_folder=is_folder):
                    continue
                full = f"{git_dir}/{path}"
                if is_folder:
                    self.entries.append(ScannedEntry(full, status.st_mode, git_dir=git_dir))
                else:
                    self.entries.append(_file_entry(full, status, git_dir))

    def _add(self, folder: _Folder, name: str, status: os.stat_result) -> None:
        path, git_dir = folder.below(name), folder.git_dir
        is_folder = stat.S_ISDIR(status.st_mode)
        if git_dir is not None:
            inner = path.removeprefix(f"{git_dir}/") if git_dir else path
            if not is_carried(inner, is_folder=is_folder):
                return
        elif path not in self.included:
            if folder.left_out is None or folder.left_out(path, name):
                return
            if (reason := secret_name(path, is_folder=is_folder)) is not None:
                shown = f"{path_text(path)}{'/' * is_folder}"
                self.left_at_home.append(SkippedFile(path=shown, reason=reason))
                return
        if is_folder:
            self.entries.append(ScannedEntry(path, status.st_mode, git_dir=git_dir))
            self.pending.append(_Folder(path, folder.left_out, git_dir))
        elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            self.entries.append(_file_entry(path, status, git_dir))
        else:
            self.skipped.append(
                SkippedFile(path=path_text(path), reason="It is not a file, directory or symlink.")
            )

    def _add_included(self) -> None:
        """Add the files that were asked for and are in a folder that was left out."""
        known = {entry.path for entry in self.entries}
        for path in sorted(self.included - known):
            with suppress(OSError, PathRefused), opened(open_below(self.root, path)) as descriptor:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    continue
                self.entries.append(_file_entry(path, status, None))
                for above in _folders_above(path):
                    if above not in known:
                        known.add(above)
                        self.entries.append(
                            ScannedEntry(above, os.lstat(self.root / above).st_mode)
                        )


def scan(
    root: Path,
    included: frozenset[str] = frozenset(),
    before: Tree | None = None,
    copies: DataCopies | None = None,
) -> Tree:
    """List the files that a snapshot of a folder has.

    Of a Git repository or a folder in one, these are the files that Git tracks or would track, and
    empty directories; of another folder, and of one that its repository ignores, all but
    `BY_PRODUCTS`. Links are never followed.

    Args:
        root: The folder.
        included: Files that are part of the snapshot even if they are ignored or secret.
        before: An earlier result with the same `included`, which saves time.
        copies: Makes copies of a repository's data outside of the folder; None: it is not read.

    Raises:
        IgnoreRulesUnreadable: Git is missing or failed.
        OSError: The folder cannot be read.
    """
    git = GitView(root, copies)
    try:
        seen = git.look("")
        if before is None or "" in git.not_carried:
            before = None
            ignored = git.ignored("", seen)
        else:
            known = {entry.path: entry for entry in before.entries}
            walk = _Walk(root, included, git, known)
            with ThreadPoolExecutor(1) as other:  # Git takes as long as the walk
                asked = other.submit(git.ignored, "", seen)
                walk.begin(None)
                ignored = asked.result()
    except RepositoryUnreadable as error:
        raise IgnoreRulesUnreadable(str(error)) from error
    left_out = _is_by_product if ignored is None else _ignored(ignored, "")
    if before is None or _is_any_left_out(walk.known, ignored):
        walk = _Walk(root, included, git)
        walk.begin(left_out)
    return walk.finish(left_out)


def _is_any_left_out(known: Mapping[str, ScannedEntry], ignored: frozenset[str] | None) -> bool:
    if ignored is not None:
        return not ignored.isdisjoint(known)
    return any(_is_by_product(path, path.rpartition("/")[2]) for path in known)


def _ignored(ignored: Collection[str], prefix: str) -> LeftOut:
    # The list of ignored paths, rather than that of all others, keeps empty directories.
    return lambda path, _name: path.removeprefix(prefix) in ignored


def _is_by_product(_path: str, name: str) -> bool:
    return name in BY_PRODUCTS or name.endswith(".pyc")


def _everything(_path: str, _name: str) -> bool:
    return True


def _file_entry(path: str, status: os.stat_result, git_dir: str | None) -> ScannedEntry:
    return ScannedEntry(path, status.st_mode, status.st_size, _stamp(status), git_dir)


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)


def _folders_above(path: str) -> list[str]:
    names = path.split("/")[:-1]
    return ["/".join(names[: count + 1]) for count in range(len(names))]


def unreadable(path: str, error: Exception) -> SkippedFile:
    """Return a file as one that could not be read."""
    reason = (isinstance(error, OSError) and error.strerror) or str(error)
    return SkippedFile(path=path_text(path), reason=f"It could not be read: {reason}.")
