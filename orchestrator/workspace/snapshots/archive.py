"""The archive of a snapshot.

It is an uncompressed tar of regular files, directories and symlinks, without owners and with the
same time for all, so that equal trees give equal bytes: first the files of the work tree, then the
repositories' own data, both sorted.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import IO, NamedTuple

from ...jobs.changes import FileKind
from .contents import Contents, Member, Omitted, Progress
from .scan import Tree

ARCHIVE_MTIME = 315_619_200
"""1980-01-02, the time of every file in a snapshot; zip archives have no earlier day."""

_COPY_BYTES = 1024**2
"""The bytes copied at once: enough to be quick, and little memory for a process."""
_PLAIN_NAME, _PLAIN_SIZE = 100, 8**11 - 1
"""The longest name and the largest size that fit into one header."""
_TYPES: Mapping[FileKind, bytes] = {
    "file": tarfile.REGTYPE,
    "symlink": tarfile.SYMTYPE,
    "directory": tarfile.DIRTYPE,
}


class StoredVersion(NamedTuple):
    """The entry of a snapshot at a path."""

    kind: FileKind
    mode: int
    size: int
    sha256: bytes | None
    """The hash of the content; None for a directory."""


@dataclass(frozen=True)
class Written:
    """The content of an archive."""

    omitted: Omitted
    made: frozenset[str]
    """The paths whose content also depends on other files."""
    read_versions: Callable[[], Mapping[str, StoredVersion]]
    """Returns the versions by path; not called when nothing has changed since."""

    @cached_property
    def versions(self) -> Mapping[str, StoredVersion]:
        """The versions by path."""
        return self.read_versions()


def write(
    root: Path,
    tree: Tree,
    sink: IO[bytes],
    *,
    max_bytes: int,
    progress: Progress | None = None,
) -> Written:
    """Write the archive of a scanned tree; return its content, and what was left out.

    Args:
        root: The folder.
        tree: What `scan` returned for it.
        sink: The stream to write to.
        max_bytes: The maximum sum of file sizes.
        progress: Is kept up to date.

    Raises:
        TooLarge: The files have grown over `max_bytes`.
    """
    archive = _Archive(sink)
    contents = Contents(root, tree, max_bytes, archive.add, progress=progress or Progress())
    contents.read()
    archive.end()
    return Written(contents.omitted, frozenset(contents.indexes), lambda: archive.versions)


@dataclass
class _Archive:
    """A tar that is being written. `tarfile` would keep a description of each member."""

    sink: IO[bytes]
    versions: dict[str, StoredVersion] = field(default_factory=dict)
    _size: int = 0
    _pending: list[bytes] = field(default_factory=list)
    _pending_bytes: int = 0

    def add(self, member: Member) -> None:
        """Add a member, and record its version."""
        digest = None if member.kind == "directory" else hashlib.sha256()
        if member.kind == "file":
            self._write(_header(member))
            while digest and (chunk := member.content.read(_COPY_BYTES)):
                digest.update(chunk)
                self._write(chunk)
            self._write(bytes(-member.size % tarfile.BLOCKSIZE))
        else:
            target = member.content.read()
            self._write(_header(member, target.decode("utf-8", "surrogateescape")))
            if digest:
                digest.update(target)
        self.versions[member.path] = StoredVersion(
            member.kind, member.mode, member.size, digest.digest() if digest else None
        )

    def end(self) -> None:
        """Write the end of the tar."""
        self._write(bytes(2 * tarfile.BLOCKSIZE))
        self._write(bytes(-self._size % tarfile.RECORDSIZE))
        self._flush()

    def _write(self, data: bytes) -> None:
        self._size += len(data)
        self._pending_bytes += len(data)
        self._pending.append(data)
        if self._pending_bytes >= _COPY_BYTES:
            self._flush()

    def _flush(self) -> None:
        self.sink.write(b"".join(self._pending))
        self._pending.clear()
        self._pending_bytes = 0


def add_content(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a plain member to an archive that is not a workspace: a layer, a restore point."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _header(member: Member, target: str = "") -> bytes:
    """Return a member's header.

    It is the same as that of `tarfile`, which takes a third of the time of a snapshot to make one.
    """
    name = os.fsencode(member.path) + b"/" * (member.kind == "directory")
    size = member.size if member.kind == "file" else 0
    if target or len(name) > _PLAIN_NAME or not name.isascii() or size > _PLAIN_SIZE:
        info = _info(member.kind)
        info.name, info.mode, info.size, info.linkname = member.path, member.mode, size, target
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    template = _template(member.kind)
    start = name.ljust(_PLAIN_NAME, b"\0") + b"%07o\0" % member.mode + template[108:124]
    start += b"%011o\0" % size + template[136:148]
    checksum = sum(start) + _sum_of_end(member.kind)
    return start + b"%06o\0 " % checksum + template[156:]


def _info(kind: FileKind) -> tarfile.TarInfo:
    info = tarfile.TarInfo()
    info.mtime, info.type = ARCHIVE_MTIME, _TYPES[kind]
    return info


@cache
def _template(kind: FileKind) -> bytes:
    return _info(kind).tobuf(tarfile.PAX_FORMAT)


@cache
def _sum_of_end(kind: FileKind) -> int:
    """Return the checksum of the end of a header; its own checksum field counts as spaces."""
    return sum(_template(kind)[156:]) + sum(b" " * 8)
