"""A folder on which changes are only tried.

Nothing is written, and what was done is seen all the same.
"""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
from pathlib import Path

from orchestrator.jobs.changes import FileKind
from orchestrator.workspace.rooted import (
    ChangedMeanwhile,
    Found,
    PathRefused,
    RootedFolder,
    check_link,
    check_path,
)


class DryRun(RootedFolder):
    """A `RootedFolder` that keeps its changes in memory, on top of what the real folder has."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._done: dict[str, Found | None] = {}

    def find(self, path: str) -> Found | None:
        """What stands at the path, or would stand there by now."""
        *above, _ = _paths_down_to(path)
        if path in self._done:
            return self._done[path]
        for directory in above:
            if (
                directory in self._done
            ):  # made afresh, or gone: nothing of the real folder is below it
                _require_directory(self._done[directory])
                return None
        return super().find(path)

    def names(self, path: str) -> frozenset[str]:
        """The names that a directory has, or would have by now."""
        inside = {
            name: found for name, found in self._done.items() if posixpath.dirname(name) == path
        }
        gone = {posixpath.basename(name) for name, found in inside.items() if found is None}
        made = {posixpath.basename(name) for name in inside} - gone
        is_fresh = any(above in self._done for above in _paths_down_to(path))
        real = frozenset() if is_fresh else super().names(path)
        return (real - gone) | made

    def put_file(self, path: str, content: bytes, mode: int, instead_of: Found | None) -> None:
        """Note the file."""
        self._expect(path, instead_of)
        self._put(path, "file", mode, content)

    def put_link(self, path: str, target: bytes, instead_of: Found | None) -> None:
        """Note the link."""
        check_link(path, os.fsdecode(target))
        self._expect(path, instead_of)
        self._put(path, "symlink", 0o777, target)

    def put_directory(self, path: str, mode: int) -> None:
        """Note the directory, where there is none."""
        if self.find(path) is None:
            self._put(path, "directory", mode, None)

    def set_mode(self, path: str, mode: int, instead_of: Found) -> None:  # noqa: ARG002 - as the real one
        """Note nothing: a merge looks at no mode twice."""
        self._expect(path, instead_of)

    def remove(self, path: str, instead_of: Found) -> None:
        """Note that the file is gone."""
        self._expect(path, instead_of)
        self._done[path] = None

    def remove_directory(self, path: str) -> None:
        """Note that the directory is gone."""
        self._done[path] = None

    def _expect(self, path: str, found: Found | None) -> None:
        if self.find(path) != found:
            raise ChangedMeanwhile

    def _put(self, path: str, kind: FileKind, mode: int, content: bytes | None) -> None:
        *above, _ = _paths_down_to(path)
        for directory in above:
            found = self.find(directory)
            if found is None:
                self._done[directory] = Found(kind="directory", mode=mode)
            elif not _require_directory(found):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)
        sha256 = None if content is None else hashlib.sha256(content).hexdigest()
        self._done[path] = Found(kind=kind, mode=mode, sha256=sha256, content=content)


def _require_directory(found: Found | None) -> bool:
    """Whether it is a directory; a link is refused, as the real folder does."""
    if found is not None and found.kind == "symlink":
        raise PathRefused("The path goes through a symlink.")
    return found is not None and found.kind == "directory"


def _paths_down_to(path: str) -> list[str]:
    names = check_path(path)
    return ["/".join(names[: count + 1]) for count in range(len(names))]
