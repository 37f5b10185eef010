"""Reads the two sides of a comparison, however hostile their content.

Standard library only: see `steward`.

No link is followed: every path is opened component by component, so that no link of a job, existing
or created meanwhile, leads outside. Paths are relative; undecodable bytes are surrogates.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

MAX_DEPTH = 256
"""How deep folders are scanned; a descriptor is open for each level."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_COMPARED_BYTES = 1 << 18
"""Two files are compared in pieces of this size: most differences show in the first."""
KEPT_FOLDERS = 64
"""How many descriptors of folders a side keeps: paths come sorted."""

if TYPE_CHECKING:
    Root = Path | int
    """A folder: its path, or a descriptor where the process may not walk to it."""


def open_folder(name: str | Root, within: int | None = None) -> int | None:
    """Return a descriptor of a real directory; None when there is none that can be opened."""
    try:
        if isinstance(name, int):
            return os.open(".", _FOLDER, dir_fd=name)
        return os.open(name, _FOLDER, dir_fd=within)
    except OSError:
        return None


def names_in(folder: int) -> list[str]:
    """Return the sorted names in a directory except `.git`; empty when it cannot be read."""
    try:
        return sorted(name for name in os.listdir(folder) if name != ".git")
    except OSError:
        return []


def status_in(folder: int | None, name: str) -> os.stat_result | None:
    """Return the `lstat` of an entry; None for a missing one and for an overlay's whiteout."""
    if folder is None:
        return None
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    return None if is_whiteout(status) else status


def is_whiteout(status: os.stat_result) -> bool:
    """Return whether the entry of an overlay's upper layer marks the lower layer's as deleted."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def paths_below(folder: int, prefix: str) -> Iterator[str]:
    """Yield all files below a directory, and the directories that are empty or too deep."""
    is_too_deep = prefix.count("/") >= MAX_DEPTH
    for name in names_in(folder):
        status = status_in(folder, name)
        if status is None:
            continue
        below = (
            open_folder(name, folder) if stat.S_ISDIR(status.st_mode) and not is_too_deep else None
        )
        if below is None:
            yield prefix + name
            continue
        try:
            empty = True
            for path in paths_below(below, f"{prefix}{name}/"):
                empty = False
                yield path
            if empty:
                yield prefix + name
        finally:
            os.close(below)


def equal_contents(first: int, second: int, name: str) -> bool:
    """Return whether the files of that name in two directories hold the same bytes.

    False when one is unreadable.
    """
    with suppress(OSError):
        one = os.open(name, _FILE, dir_fd=first)
        try:
            other = os.open(name, _FILE, dir_fd=second)
            try:
                return _equal(one, other)
            finally:
                os.close(other)
        finally:
            os.close(one)
    return False


def _equal(one: int, other: int) -> bool:
    while True:
        data = os.read(one, _COMPARED_BYTES)
        if data != os.read(other, _COMPARED_BYTES):
            return False
        if not data:
            return True


class Side:
    """One side of a comparison: a folder whose entries are read by path."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._folders: dict[str, int | None] = {}

    def status(self, path: str) -> os.stat_result | None:
        """Return the `lstat` of a path; None when nothing is there."""
        return status_in(*self._place(path))

    def is_empty(self, path: str) -> bool:
        """Return whether a directory has no entries, not even a `.git`."""
        folder, name = self._place(path)
        descriptor = None if folder is None else open_folder(name, folder)
        if descriptor is None:
            return False
        try:
            with os.scandir(descriptor) as entries:
                return not any(status_in(descriptor, entry.name) for entry in entries)
        except OSError:
            return False
        finally:
            os.close(descriptor)

    def link_target(self, path: str) -> bytes:
        """Return a symlink's target.

        Raises:
            OSError: the path is not a symlink.
        """
        folder, name = self._known_place(path)
        return os.fsencode(os.readlink(name, dir_fd=folder))

    def open_file(self, path: str) -> int:
        """Return a descriptor for reading a file.

        Raises:
            OSError: the file cannot be opened.
        """
        folder, name = self._known_place(path)
        return os.open(name, _FILE, dir_fd=folder)

    def _known_place(self, path: str) -> tuple[int, str]:
        folder, name = self._place(path)
        if folder is None:
            raise FileNotFoundError(path)
        return folder, name

    def _place(self, path: str) -> tuple[int | None, str]:
        """Return the descriptor of the directory that has an entry, and the entry's name."""
        folder, _, name = path.rpartition("/")
        return self._folder(folder), name

    def _folder(self, path: str) -> int | None:
        """Return a descriptor of a directory; cached, since paths come sorted."""
        if path in self._folders:
            return self._folders[path]
        if len(self._folders) >= KEPT_FOLDERS:
            self.close()
        if not path:
            descriptor = open_folder(self._root)
        else:
            parent, _, name = path.rpartition("/")
            within = self._folder(parent)
            descriptor = None if within is None else open_folder(name, within)
        self._folders[path] = descriptor
        return descriptor

    def close(self) -> None:
        """Close all descriptors."""
        for descriptor in self._folders.values():
            if descriptor is not None:
                os.close(descriptor)
        self._folders.clear()
