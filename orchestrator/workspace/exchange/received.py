"""Archives that somebody sent, unpacked into an empty folder: tar, tar.gz or zip, not trusted.

A snapshot is made of the folder afterwards, as of a person's folder: what Git ignores and what
seems to be secret is left out by the same rules. Workers unpack snapshots with code of their own
(`workers/sandbox/inside/archives.py`), which needs nothing but Python and reads only our own form.
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from fanout.orchestrator.jobs.failures import JobFailure
from fanout.orchestrator.workspace.rooted import PERMISSION_BITS, PathRefused, check_link

MAX_MEMBERS = 200_000
"""Of an archive: five times the files of Git's largest well-known repositories need no more, and a
list of them takes 200 MB while a zip is read."""
MAX_NAMES = 257
"""In a path: as many as a snapshot's layers may have."""
MAX_LINK_BYTES = 4096
"""Of a symlink's target: longer ones cannot be created."""

_BORROWED = ["objects", "info", "alternates"]
"""The end of the path of the file that makes Git read objects elsewhere on this machine."""

_COPY_BYTES = 1024**2
"""Copied at once: large enough to be quick, small beside a process."""
_MAX_READ_BYTES = 16 * 1024**2
"""Read at once: tarfile and zipfile take a header or a directory into memory as large as the
archive says it is."""
_HEADER_BYTES = 2048
"""Of a member beside its content: its header, an extended one, and what fills its block."""


class ArchiveRefused(JobFailure):
    """The archive cannot be a workspace; the text says why."""


@dataclass(frozen=True)
class _Member:
    """One member; its content is read before the next one is asked for."""

    path: str
    kind: str
    """`file`, `folder`, `symlink`, `hardlink` or `other`."""
    mode: int = 0
    size: int = 0
    target: str = ""
    open: Callable[[], IO[bytes] | None] = lambda: None


def unpack(
    archive: Path, folder: Path, *, max_bytes: int, is_wanted: Callable[[], bool] = lambda: True
) -> None:
    """Unpack an archive into an empty private folder; blocks.

    Args:
        archive: The archive; its kind is told by its content.
        folder: The folder; nothing outside of it is written.
        max_bytes: The maximum sum of its files.
        is_wanted: Asked before each member; when it returns False, unpacking ends.

    Raises:
        ArchiveRefused: The archive is damaged, too large, or has members outside its root, links
            that lead out of it, or something else than files, folders and links.
        OSError: The folder cannot be written.
    """
    unpacking = _Unpacking(folder, max_bytes)
    with _translated(), archive.open("rb") as stream:
        for member in _members(stream, max_bytes):
            if not is_wanted():
                raise ArchiveRefused("It is not wanted any more.")
            unpacking.add(member)
        unpacking.make_links()


def write_files(files: Mapping[str, bytes], folder: Path, *, max_bytes: int) -> None:
    """Write files that somebody sent into an empty private folder; blocks.

    Args:
        files: Contents by path.
        folder: The folder; nothing outside of it is written.
        max_bytes: The maximum sum of the contents.

    Raises:
        ArchiveRefused: A path leads out of the folder, or the files are too many or too large.
    """
    unpacking = _Unpacking(folder, max_bytes)
    with _translated():
        for path, content in files.items():
            source = partial(io.BytesIO, content)
            unpacking.add(_Member(path, "file", 0o644, len(content), open=source))


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise ArchiveRefused("The archive has two members at one path.") from error
    except (UnicodeError, PathRefused) as error:
        raise ArchiveRefused(f"The archive has an unusable path or link. {error}") from error
    except (
        *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error),
        *(EOFError, ValueError, NotImplementedError, RuntimeError, OverflowError),
    ) as error:
        kind = type(error).__name__
        raise ArchiveRefused(
            f"The archive cannot be read ({kind}): send a tar, a tar.gz or a zip."
        ) from error


def _members(stream: IO[bytes], max_bytes: int) -> Iterator[_Member]:
    head = stream.read(4)
    stream.seek(0)
    if head in {b"PK\x03\x04", b"PK\x05\x06"}:
        return _zip_members(stream)
    limit = max_bytes + MAX_MEMBERS * _HEADER_BYTES
    if head[:2] == b"\x1f\x8b":
        return _tar_members(_Bounded(gzip.GzipFile(fileobj=stream, mode="rb"), limit))
    return _tar_members(_Bounded(stream, limit))


def _tar_members(stream: _Bounded) -> Iterator[_Member]:
    with tarfile.open(fileobj=stream, mode="r:") as archive:  # type: ignore[call-overload] # as much of a file as it uses
        while (info := archive.next()) is not None:
            archive.members.clear()  # it would remember all of them
            yield _tar_member(archive, info)


def _tar_member(archive: tarfile.TarFile, info: tarfile.TarInfo) -> _Member:
    kinds = {
        "folder": info.isdir(),
        "symlink": info.issym(),
        "hardlink": info.islnk(),
        "file": info.isreg() and not info.issparse(),
    }
    kind = next((name for name, applies in kinds.items() if applies), "other")
    size = info.size if kind == "file" else 0
    return _Member(
        info.name, kind, info.mode, size, info.linkname, lambda: archive.extractfile(info)
    )


def _zip_members(stream: IO[bytes]) -> Iterator[_Member]:
    with zipfile.ZipFile(_Bounded(stream)) as archive:
        for info in archive.infolist():
            yield _zip_member(archive, info)


def _zip_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    if info.flag_bits & 1:
        raise ArchiveRefused("The archive is encrypted: send one that is not.")
    if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise ArchiveRefused("The archive uses a rare compression: send a tar.gz.")
    mode = info.external_attr >> 16
    format_ = stat.S_IFMT(mode)
    if info.is_dir():
        return _Member(info.filename, "folder")
    if stat.S_ISLNK(mode):
        if info.file_size > MAX_LINK_BYTES:
            raise ArchiveRefused("The archive has a link of too many bytes.")
        return _Member(info.filename, "symlink", target=os.fsdecode(archive.read(info)))
    kind = "file" if format_ in {0, stat.S_IFREG} else "other"
    mode = mode & PERMISSION_BITS or 0o644  # of an archiver that knows no modes
    return _Member(info.filename, kind, mode, info.file_size, open=lambda: archive.open(info))


class _Unpacking:
    """The state of unpacking one archive into a folder."""

    def __init__(self, folder: Path, room: int) -> None:
        self._folder = folder
        self._max_bytes = self._room = room
        self._members = 0
        self._links: dict[str, str] = {}

    def add(self, member: _Member) -> None:
        """Unpack a member; links wait for `make_links`, so that none is ever written through."""
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise ArchiveRefused(f"The archive has more than {MAX_MEMBERS:,} members.")
        names = _names(member.path)
        if names[-3:] == _BORROWED:
            raise ArchiveRefused(
                "The archive has a repository that borrows objects from another one "
                "(objects/info/alternates): run `git repack -a -d` in it and delete that file."
            )
        path = self._folder.joinpath(*names)
        if member.kind == "folder":
            path.mkdir(mode=0o755, parents=True, exist_ok=True)
            return
        if not names:
            raise ArchiveRefused("The archive has a member without a name.")
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if member.kind == "file":
            self._write(path, member.size, member.mode, member.open())
        elif member.kind == "hardlink":
            self._copy(path, self._folder.joinpath(*_names(member.target)))
        elif member.kind == "symlink":
            check_link("/".join(names), member.target)
            if self._links.setdefault("/".join(names), member.target) != member.target:
                raise FileExistsError
        else:
            raise ArchiveRefused(
                "The archive has something else than files, folders and links "
                "(a device, a socket, a sparse file): leave it out."
            )

    def make_links(self) -> None:
        """Create the symlinks."""
        for path, target in self._links.items():
            above = path.split("/")[:-1]
            if any("/".join(above[: count + 1]) in self._links for count in range(len(above))):
                raise ArchiveRefused("The archive has a member below a symlink.")
            (self._folder / path).symlink_to(target)

    def _copy(self, path: Path, original: Path) -> None:
        if not original.is_file():
            raise ArchiveRefused("The archive has a hard link to something that it does not have.")
        with original.open("rb") as source:
            status = os.fstat(source.fileno())
            self._write(path, status.st_size, status.st_mode, source)

    def _write(self, path: Path, size: int, mode: int, source: IO[bytes] | None) -> None:
        if source is None or size < 0:
            raise ArchiveRefused("The archive has a member without content.")
        if size > self._room:
            raise ArchiveRefused(
                f"The archive has more than {self._max_bytes:,} bytes of files "
                "(FANOUT_LIMITS__SNAPSHOT_BYTES): send what the job needs."
            )
        self._room -= size
        with source, path.open("xb") as file:
            shutil.copyfileobj(source, file, _COPY_BYTES)
            if file.tell() != size:
                raise ArchiveRefused("The archive ends early: send it again.")
            os.fchmod(file.fileno(), mode & PERMISSION_BITS | stat.S_IRUSR | stat.S_IWUSR)


def _names(path: str) -> list[str]:
    """Return the names in a member's path, which stays below the archive's root."""
    names = [name for name in path.split("/") if name not in {"", "."}]
    if path.startswith("/") or ".." in names or "\0" in path:
        raise ArchiveRefused("The archive has a member outside its root: pack relative paths.")
    if len(names) > MAX_NAMES or any(len(os.fsencode(name)) > 255 for name in names):  # noqa: PLR2004 - NAME_MAX
        raise ArchiveRefused("The archive has a path that is too long or too deep.")
    return names


class _Bounded:
    """A stream that does not give more at once, and in sum, than an honest archive needs.

    Args:
        stream: The stream.
        limit: How far it may be read; it is then read forwards only. None: it is a file.
    """

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, limit: int | None = None) -> None:
        self._stream = stream
        self._limit = limit

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        if size > _MAX_READ_BYTES:
            raise ArchiveRefused("The archive has a header that is too large.")
        if size < 0:  # to its end, which zipfile has sought before
            size = _MAX_READ_BYTES
        if self._limit is not None and self._stream.tell() + size > self._limit:
            size = max(self._limit - self._stream.tell(), 0)
            if not size:
                raise ArchiveRefused("The archive has more bytes than its files may have.")
        return self._stream.read(size)

    def tell(self) -> int:
        """Return the position."""
        return self._stream.tell()

    def seekable(self) -> bool:
        """Return whether positions can be sought."""
        return True

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position."""
        if self._limit is None:
            return self._stream.seek(position, whence)
        if whence != os.SEEK_SET or not self._stream.tell() <= position <= self._limit:
            raise ArchiveRefused("The archive has more bytes than its files may have.")
        return self._stream.seek(position)

    def close(self) -> None:
        """Leave the stream to whoever opened it."""
