"""Reads the two sides of a comparison, and keeps the contents of what differs.

Standard library only: see `steward`.

However hostile the sides are, no link is followed: every path is opened component by component, so
that no link of a job, existing or created meanwhile, leads outside. Paths are relative; undecodable
bytes are surrogates. Most contents are small and stay in memory: each is read once, and hashed
once. Large ones are copied into a scratch folder.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    Root = Path | int
    """A folder: its path, or a descriptor where the process may not walk to it."""


MAX_DEPTH = 256
"""How deep folders are scanned; a descriptor is open for each level."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_COMPARED_BYTES = 1 << 18
"""Two files are compared in pieces of this size: most differences show in the first."""
KEPT_FOLDERS = 64
"""How many descriptors of folders a side keeps: paths come sorted."""
SMALL_BYTES = 1 << 20
"""Most files are smaller; a larger one is read in pieces of this size."""
_MAX_KEPT_BYTES = 16 << 20
"""The most bytes of small contents in memory: hundreds of files, and little for a process."""
_PROBE_BYTES = 8_000
"""The first bytes of a file that Git examines: a NUL makes the file binary."""


def open_folder(name: str | Root, within: int | None = None) -> int | None:
    """Return a descriptor of a real directory; None when there is none that can be opened."""
    try:
        if isinstance(name, int):
            return os.open(".", _FOLDER, dir_fd=name)
        return os.open(name, _FOLDER, dir_fd=within)
    except OSError:
        return None


def sorted_names(folder: int) -> list[str]:
    """Return the sorted names in a directory except `.git`; empty when it cannot be read."""
    try:
        return sorted(name for name in os.listdir(folder) if name != ".git")
    except OSError:
        return []


def entry_status(folder: int | None, name: str) -> os.stat_result | None:
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
    for name in sorted_names(folder):
        status = entry_status(folder, name)
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
        return entry_status(*self._place(path))

    def is_empty(self, path: str) -> bool:
        """Return whether a directory has no entries, not even a `.git`."""
        folder, name = self._place(path)
        descriptor = None if folder is None else open_folder(name, folder)
        if descriptor is None:
            return False
        try:
            with os.scandir(descriptor) as entries:
                return not any(entry_status(descriptor, entry.name) for entry in entries)
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


class Skip(Exception):
    """A path is named in the bundle, but not carried; the message has the reason."""


class ChangedVersion(NamedTuple):
    """One side of a change; the fields of `orchestrator.jobs.changes.FileVersion`."""

    kind: str
    mode: int
    sha256: str | None
    size_bytes: int

    @property
    def git_mode(self) -> str:
        """The mode as git has it; meaningless for a directory."""
        return "120000" if self.kind == "symlink" else "100755" if self.mode & 0o100 else "100644"


class ChangedContents:
    """What was read so far, by SHA-256.

    Args:
        scratch: returns the folder for large contents, which is made when one is met.
        max_file_bytes: larger files are refused.
        max_total_bytes: of all contents together.
    """

    def __init__(
        self, scratch: Callable[[], Path], max_file_bytes: int, max_total_bytes: int
    ) -> None:
        self._scratch = scratch
        self._max_file_bytes, self._left = max_file_bytes, max_total_bytes
        self._small: dict[str, bytes] = {}
        self._large: dict[str, Path] = {}
        self._left_kept = _MAX_KEPT_BYTES

    def of(self, version: ChangedVersion) -> bytes | Path:
        """Return the content of a file or a symlink: itself, or the file that holds a large one."""
        sha256 = version.sha256 or ""
        small = self._small.get(sha256)
        return self._large[sha256] if small is None else small

    def is_binary(self, version: ChangedVersion) -> bool:
        """Return whether git treats a content as binary."""
        content = self.of(version)
        if isinstance(content, Path):
            with content.open("rb") as file:
                content = file.read(_PROBE_BYTES)
        return b"\0" in content[:_PROBE_BYTES]

    def lines(self, version: ChangedVersion) -> int:
        """Return the number of lines of a content, the last of which may have no end."""
        content = self.of(version)
        if isinstance(content, bytes):
            return content.count(b"\n") + (content != b"" and not content.endswith(b"\n"))
        lines, last = 0, b""
        with content.open("rb") as file:
            while data := file.read(SMALL_BYTES):
                lines, last = lines + data.count(b"\n"), data
        return lines + (last != b"" and not last.endswith(b"\n"))

    def version(
        self, side: Side, path: str, status: os.stat_result | None
    ) -> ChangedVersion | None:
        """Describe the file at a path and keep its content.

        None for a missing path, and for a folder that is not empty.

        Raises:
            Skip: it cannot be carried.
        """
        if status is None:
            return None
        mode = stat.S_IMODE(status.st_mode)
        try:
            if stat.S_ISDIR(status.st_mode):
                return ChangedVersion("directory", mode, None, 0) if side.is_empty(path) else None
            if stat.S_ISLNK(status.st_mode):
                return ChangedVersion("symlink", 0o777, *self._keep_small(side.link_target(path)))
            if not stat.S_ISREG(status.st_mode):
                raise Skip("a special file")
            if status.st_size > self._max_file_bytes:
                raise Skip(f"larger than {self._max_file_bytes} bytes")
            return ChangedVersion("file", mode, *self._keep(side.open_file(path), status.st_size))
        except OSError as error:
            raise Skip(f"unreadable: {error.strerror}") from error

    def _keep(self, descriptor: int, expected_bytes: int) -> tuple[str, int]:
        """Keep a file's content and close the file; return the content's hash and size."""
        with open(descriptor, "rb", buffering=0) as file:
            asked = min(expected_bytes + 1, SMALL_BYTES)
            first = file.read(asked) or b""
            if len(first) < asked:
                return self._keep_small(first)
            digest, size = hashlib.sha256(first), len(first)
            with tempfile.NamedTemporaryFile(dir=self._scratch(), delete=False) as copy:
                copy.write(first)
                while data := file.read(SMALL_BYTES):
                    size += len(data)
                    if size > self._max_file_bytes:  # it grows while it is read
                        Path(copy.name).unlink()
                        raise Skip(f"larger than {self._max_file_bytes} bytes")
                    digest.update(data)
                    copy.write(data)
        return self._keep_large(digest.hexdigest(), size, Path(copy.name))

    def _keep_large(self, sha256: str, size: int, copy: Path) -> tuple[str, int]:
        if sha256 in self._large:
            copy.unlink()
        else:
            try:
                self._take_room(size)
            except Skip:
                copy.unlink()
                raise
            self._large[sha256] = copy
        return sha256, size

    def _keep_small(self, content: bytes) -> tuple[str, int]:
        size = len(content)
        if size > self._max_file_bytes:
            raise Skip(f"larger than {self._max_file_bytes} bytes")
        sha256 = hashlib.sha256(content).hexdigest()
        if sha256 not in self._small and sha256 not in self._large:
            self._take_room(size)
            if size <= self._left_kept:
                self._left_kept -= size
                self._small[sha256] = content
            else:
                path = self._scratch() / sha256
                path.write_bytes(content)
                self._large[sha256] = path
        return sha256, size

    def _take_room(self, size: int) -> None:
        if size > self._left:
            raise Skip("the changes are larger than a bundle may be")
        self._left -= size
