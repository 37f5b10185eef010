"""A folder whose changes stay in memory: what a merge would do, or the tree of a new commit."""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from ..jobs.changes import FileKind
from .rooted import (
    ChangedMeanwhile,
    Found,
    PathRefused,
    check_link,
    check_path,
)

_DIRECTORY_MODE = 0o755
"""The mode of directories above a new file, before the umask."""


class Readable(Protocol):
    """The folder below the changes."""

    def find(self, path: str) -> Found | None:
        """Return the entry at the path."""

    def names(self, path: str) -> frozenset[str]:
        """Return the names in a directory; empty when it does not exist."""


class DryRun:
    """A folder that writes nothing: its changes overlay another one in memory.

    Args:
        base: The folder below.
    """

    def __init__(self, base: Readable) -> None:
        self._base = base
        self._changes: dict[str, Found | None] = {}
        """Path -> its new entry; None: removed."""

    @property
    def changes(self) -> Mapping[str, Found | None]:
        """The changes so far: path -> its new entry; None for a removed one."""
        return self._changes

    def find(self, path: str) -> Found | None:
        """Return the entry at the path, after the changes so far."""
        *above, _ = _list_steps(path)
        if path in self._changes:
            return self._changes[path]
        for directory in above:
            # A new or removed directory hides everything that the base has below it.
            if directory in self._changes:
                _require_directory(self._changes[directory])
                return None
        return self._base.find(path)

    def names(self, path: str) -> frozenset[str]:
        """Return the names in a directory, after the changes so far."""
        inside = {
            posixpath.basename(name): found
            for name, found in self._changes.items()
            if posixpath.dirname(name) == path
        }
        removed = {name for name, found in inside.items() if found is None}
        real = frozenset() if self._is_changed(path) else self._base.names(path)
        return (real | inside.keys()) - removed

    def put_file(self, path: str, content: bytes, mode: int, instead_of: Found | None) -> None:
        """Record the file.

        Raises:
            ChangedMeanwhile: The current entry is not `instead_of`.
        """
        self._expect(path, instead_of)
        self._put(path, "file", mode, content)

    def put_link(self, path: str, target: bytes, instead_of: Found | None) -> None:
        """Record the link.

        Raises:
            PathRefused: The target is outside the folder or in Git's data.
            ChangedMeanwhile: The current entry is not `instead_of`.
        """
        check_link(path, os.fsdecode(target))
        self._expect(path, instead_of)
        self._put(path, "symlink", 0o777, target)

    def put_directory(self, path: str, mode: int) -> None:
        """Record the directory, if it does not exist."""
        if self.find(path) is None:
            self._put(path, "directory", mode, None)

    def set_mode(self, path: str, mode: int, instead_of: Found) -> None:
        """Record the mode.

        Raises:
            ChangedMeanwhile: The current entry is not `instead_of`.
        """
        self._expect(path, instead_of)
        self._record(path, replace(instead_of, mode=mode))

    def remove(self, path: str, instead_of: Found) -> None:
        """Record the removal of a file or link.

        Raises:
            ChangedMeanwhile: The current entry is not `instead_of`.
        """
        self._expect(path, instead_of)
        self._record(path, None)

    def remove_directory(self, path: str) -> None:
        """Record the removal of a directory."""
        self._record(path, None)

    def _is_changed(self, path: str) -> bool:
        """Return whether an entry, or a directory above it, is no longer that of the base."""
        return any(each in self._changes for each in _list_steps(path))

    def _expect(self, path: str, found: Found | None) -> None:
        if self.find(path) != found:
            raise ChangedMeanwhile

    def _put(self, path: str, kind: FileKind, mode: int, content: bytes | None) -> None:
        *above, _ = _list_steps(path)
        for directory in above:
            found = self.find(directory)
            if found is None:
                self._record(directory, Found(kind="directory", mode=_DIRECTORY_MODE))
            elif not _require_directory(found):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)
        sha256 = None if content is None else hashlib.sha256(content).hexdigest()
        self._record(path, Found(kind=kind, mode=mode, sha256=sha256, content=content))

    def _record(self, path: str, found: Found | None) -> None:
        self._changes[path] = found


def _require_directory(found: Found | None) -> bool:
    """Return whether an entry is a directory; refuse a link, as the real folder does."""
    if found is not None and found.kind == "symlink":
        raise PathRefused("The path goes through a symlink.")
    return found is not None and found.kind == "directory"


def _list_steps(path: str) -> list[str]:
    names = check_path(path)
    return ["/".join(names[: count + 1]) for count in range(len(names))]
