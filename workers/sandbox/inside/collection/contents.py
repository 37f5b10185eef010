"""The contents of changed files, each once. Standard library only.

Most are small and stay in memory: each is read once, and hashed once. Large ones are copied into a
scratch folder.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.workers.sandbox.inside.collection.change_sides import Side

SMALL_BYTES = 1 << 20
"""Most files are smaller; a larger one is read in pieces of this size."""
_MAX_KEPT_BYTES = 16 << 20
"""Of the small contents in memory: hundreds of files, and little beside a process."""
_PROBE_BYTES = 8_000
"""Git treats a file with a NUL in its first bytes as binary."""


class Skip(Exception):
    """A path is named in the bundle, but not carried; the message has the reason."""


class Version(NamedTuple):
    """One side of a change; the fields of `orchestrator.jobs.changes.FileVersion`."""

    kind: str
    mode: int
    sha256: str | None
    size_bytes: int

    @property
    def git_mode(self) -> str:
        """The mode as git has it; meaningless for a directory."""
        return "120000" if self.kind == "symlink" else "100755" if self.mode & 0o100 else "100644"


class Contents:
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

    def of(self, version: Version) -> bytes | Path:
        """Return the content of a file or a symlink: itself, or the file that holds a large one."""
        sha256 = version.sha256 or ""
        small = self._small.get(sha256)
        return self._large[sha256] if small is None else small

    def is_binary(self, version: Version) -> bool:
        """Return whether git treats a content as binary."""
        content = self.of(version)
        if isinstance(content, Path):
            with content.open("rb") as file:
                content = file.read(_PROBE_BYTES)
        return b"\0" in content[:_PROBE_BYTES]

    def lines(self, version: Version) -> int:
        """Return the number of lines of a content, the last of which may have no end."""
        content = self.of(version)
        if isinstance(content, bytes):
            return content.count(b"\n") + (content != b"" and not content.endswith(b"\n"))
        lines, last = 0, b""
        with content.open("rb") as file:
            while data := file.read(SMALL_BYTES):
                lines, last = lines + data.count(b"\n"), data
        return lines + (last != b"" and not last.endswith(b"\n"))

    def version(self, side: Side, path: str, status: os.stat_result | None) -> Version | None:
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
                return Version("directory", mode, None, 0) if side.is_empty(path) else None
            if stat.S_ISLNK(status.st_mode):
                return Version("symlink", 0o777, *self._keep_small(side.link_target(path)))
            if not stat.S_ISREG(status.st_mode):
                raise Skip("a special file")
            if status.st_size > self._max_file_bytes:
                raise Skip(f"larger than {self._max_file_bytes} bytes")
            return Version("file", mode, *self._keep(side.open_file(path), status.st_size))
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
