"""The files of a snapshot.

What Git ignores stays at home, and so do secrets: files whose name or content says that they are
(`secret_files.py`), unless a person asks for them by name. A repository's own data is a selection
(`git_data.py`). `archive.py` writes the files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fanout.orchestrator.jobs.changes import SkippedFile
from fanout.orchestrator.workspace.repositories.configuration import Unreadable
from fanout.orchestrator.workspace.repositories.git_data import is_carried, is_git_directory
from fanout.orchestrator.workspace.repositories.repository import (
    enclosing_repository,
    ignored_paths,
)
from fanout.orchestrator.workspace.rooted import PathRefused, open_below, opened
from fanout.orchestrator.workspace.secret_files import secret_name

BY_PRODUCTS = frozenset(
    {"__pycache__", ".venv", "node_modules", ".pytest_cache", ".mypy_cache", ".ruff_cache"},
)
"""Left out of folders without a Git repository, which would say what to ignore, as are `*.pyc`
files."""

LeftOut = Callable[[str, str], bool]
"""Takes a path and its last name; returns whether the snapshot leaves it out."""


class IgnoreRulesUnreadable(Exception):
    """Git could not list the files that it ignores, so that a snapshot might contain secrets."""


class Entry(NamedTuple):
    """A path with the result of `lstat`: an equal entry later means an unchanged file."""

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

    entries: tuple[Entry, ...]
    skipped: tuple[SkippedFile, ...]
    left_at_home: tuple[SkippedFile, ...] = ()
    """Files and folders that are secret by their name."""
    included: frozenset[str] = frozenset()
    """The files that a person asked for by name."""

    @property
    def size_bytes(self) -> int:
        """The sum of all file sizes."""
        return sum(entry.size for entry in self.entries)


@dataclass(frozen=True)
class _Folder:
    """A folder to list."""

    path: str
    left_out: LeftOut
    git_dir: str | None = None
    """The repository whose own data it belongs to; None: it is part of the work tree."""

    def below(self, name: str) -> str:
        """Return the path of an entry."""
        return f"{self.path}/{name}" if self.path else name


@dataclass
class _Walk:
    root: Path
    left_out: LeftOut
    included: frozenset[str]
    entries: list[Entry] = field(default_factory=list)
    skipped: list[SkippedFile] = field(default_factory=list)
    left_at_home: list[SkippedFile] = field(default_factory=list)
    pending: list[_Folder] = field(default_factory=list)

    def run(self) -> Tree:
        self.pending.append(_Folder("", self.left_out))
        while self.pending:
            folder = self.pending.pop()
            try:
                self._list(folder)
            except (FileNotFoundError, PathRefused):
                continue  # it was removed, or became a link, since it was listed
            except OSError as error:
                self.skipped.append(unreadable(folder.path or ".", error))
        self._add_included()
        return Tree(
            tuple(sorted(self.entries, key=lambda entry: entry.path)),
            tuple(sorted(self.skipped, key=lambda file: file.path)),
            tuple(sorted(self.left_at_home, key=lambda file: file.path)),
            self.included,
        )

    def _list(self, folder: _Folder) -> None:
        with (
            opened(open_below(self.root, folder.path, os.O_DIRECTORY)) as descriptor,
            os.scandir(descriptor) as listing,
        ):
            items = list(listing)
            folder = self._entered(folder, {item.name for item in items})
            for item in items:
                with suppress(FileNotFoundError):  # removed since it was listed
                    self._add(folder, item.name, item.stat(follow_symlinks=False))

    def _entered(self, folder: _Folder, names: Collection[str]) -> _Folder:
        """Return a folder with the rules that hold in it, which a repository brings along."""
        in_data = folder.git_dir is not None
        if is_git_directory(folder.path.rpartition("/")[2], names):
            return _Folder(folder.path, folder.left_out, folder.path)
        if folder.path and ".git" in names and not in_data:
            try:
                return _Folder(folder.path, _nested_rules(self.root, folder))
            except Unreadable as error:
                self.skipped.append(
                    SkippedFile(
                        path=printable(folder.path),
                        reason=f"Git cannot list the files that it ignores: {error}.",
                    )
                )
                return _Folder(folder.path, _everything)
        return folder

    def _add(self, folder: _Folder, name: str, status: os.stat_result) -> None:
        path, git_dir = folder.below(name), folder.git_dir
        is_folder = stat.S_ISDIR(status.st_mode)
        if git_dir is not None:
            inner = path.removeprefix(f"{git_dir}/") if git_dir else path
            if not is_carried(inner, is_folder=is_folder):
                return
        elif path not in self.included:
            if folder.left_out(path, name):
                return
            if (reason := secret_name(path, is_folder=is_folder)) is not None:
                shown = f"{printable(path)}{'/' * is_folder}"
                self.left_at_home.append(SkippedFile(path=shown, reason=reason))
                return
        if is_folder:
            self.entries.append(Entry(path, status.st_mode, git_dir=git_dir))
            self.pending.append(_Folder(path, folder.left_out, git_dir))
        elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            self.entries.append(_file_entry(path, status, git_dir))
        else:
            self.skipped.append(
                SkippedFile(path=printable(path), reason="It is not a file, directory or symlink.")
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
                        self.entries.append(Entry(above, os.lstat(self.root / above).st_mode))


def scan(root: Path, included: frozenset[str] = frozenset()) -> Tree:
    """List the files that a snapshot of a folder has.

    Of a Git repository or a folder in one, these are the files that Git tracks or would track, and
    empty directories; of another folder, and of one that its repository ignores, all but
    `BY_PRODUCTS`. Links are never followed.

    Args:
        root: The folder.
        included: Files that are part of the snapshot even if they are ignored or secret.

    Raises:
        IgnoreRulesUnreadable: Git is missing or failed.
        OSError: The folder cannot be read.
    """
    try:
        repository = enclosing_repository(root)
        ignored = ignored_paths(repository, root) if repository else None
    except Unreadable as error:
        raise IgnoreRulesUnreadable(str(error)) from error
    left_out = _is_by_product if ignored is None else _ignored(ignored, "")
    return _Walk(root, left_out, included).run()


def _nested_rules(root: Path, folder: _Folder) -> LeftOut:
    """Return the rules of a repository in the workspace; those of the folder if it is none.

    Raises:
        Unreadable: Git failed.
    """
    place = root / folder.path
    repository = enclosing_repository(place)
    if repository is None or repository.work_tree != place.resolve():
        return folder.left_out
    return _ignored(ignored_paths(repository, place) or frozenset(), f"{folder.path}/")


def _ignored(ignored: frozenset[str], prefix: str) -> LeftOut:
    # The list of ignored paths, rather than that of all others, keeps empty directories.
    return lambda path, _name: path.removeprefix(prefix) in ignored


def _is_by_product(_path: str, name: str) -> bool:
    return name in BY_PRODUCTS or name.endswith(".pyc")


def _everything(_path: str, _name: str) -> bool:
    return True


def _file_entry(path: str, status: os.stat_result, git_dir: str | None) -> Entry:
    stamp = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
    return Entry(path, status.st_mode, status.st_size, stamp, git_dir)


def _folders_above(path: str) -> list[str]:
    names = path.split("/")[:-1]
    return ["/".join(names[: count + 1]) for count in range(len(names))]


def unreadable(path: str, error: Exception) -> SkippedFile:
    """Return a file as one that could not be read."""
    reason = (isinstance(error, OSError) and error.strerror) or str(error)
    return SkippedFile(path=printable(path), reason=f"It could not be read: {reason}.")


def printable(path: str) -> str:
    """Return a path as valid Unicode: bytes that are not UTF-8 are replaced."""
    return os.fsencode(path).decode("utf-8", "replace")
