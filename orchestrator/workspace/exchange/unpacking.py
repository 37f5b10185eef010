"""A program that unpacks a received, untrusted archive: a tar, a tar.gz or a zip.

It reads the archive twice. The first time it counts, and refuses, before the first file is
written; the second time it writes. It runs in a process of its own (`received.py` starts it),
because the parsers of the standard library can be held up by an archive of a few kilobytes.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import shutil
import stat
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

from ..rooted import PERMISSION_BITS, PathRefused, check_link

MAX_MEMBERS = 200_000
"""The most members of an archive. Five times the files of Git's largest well-known repositories
fit; a list of them takes 200 MB while a zip is read."""
MAX_FOLDERS = 25_000
"""The most folders in an archive, including those that paths imply: four times as many as the Linux
kernel has. Creating and removing one takes a disk milliseconds."""
MAX_REPOSITORIES = 100
"""The most repositories in an archive: for each, Git is asked which files it ignores."""
MAX_NAMES = 257
"""The most names in a path: as many as a snapshot's layers may have."""
MAX_PATH_BYTES = 3_000
"""The longest path: with the folder that it is unpacked in, Linux opens none of more than 4,096
bytes."""
MAX_ALL_PATH_BYTES = 64 * 1024**2
"""The most bytes of all paths together: 300 for each member."""
MAX_LINK_BYTES = 4096
"""The longest target of a symlink: longer ones cannot be created."""
MAX_EXTENDED_BYTES = 64 * 1024
"""The largest extended header of a member (PAX, GNU): a path, a target and a few attributes. The
time of `tarfile` grows with its square in Python before 3.11.10 and 3.12.6."""

REFUSED = 3
"""The exit code for an archive that cannot be a workspace; the output says why."""
NO_ROOM = 4
"""The exit code when the disk is full."""

_BORROWED = ["objects", "info", "alternates"]
"""The end of the path of the file that makes Git read objects elsewhere on this machine."""

_COPY_BYTES = 1024**2
"""The bytes copied at once: enough to be quick, and little memory for a process."""
_MAX_READ_BYTES = 16 * 1024**2
"""The bytes read at once: zipfile takes a directory into memory as large as the archive says it is.
"""
_HEADER_BYTES = 2048
"""The bytes of a member besides its content: its header, an extended one, and the padding of its
block."""

_DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error),
    *(EOFError, ValueError, NotImplementedError, RuntimeError, OverflowError),
)
"""The exceptions that the parsers raise for a damaged archive."""


class Refused(Exception):
    """The archive cannot be a workspace; the text says why."""


@dataclass(frozen=True)
class ArchiveMember:
    """One member; its content is read before the next one is asked for."""

    path: str
    kind: str
    """`file`, `folder`, `symlink`, `hardlink` or `other`."""
    mode: int = 0
    size: int = 0
    target: str = ""
    open: Callable[[], IO[bytes] | None] = lambda: None


@dataclass
class Inventory:
    """The space that members need, which is counted before they are written and has a limit.

    Args:
        max_bytes: The maximum sum of the files.
        what: The name of what has the members, for messages.
    """

    max_bytes: int
    what: str = "archive"
    _bytes: int = 0
    _path_bytes: int = 0
    _members: int = 0
    _repositories: int = 0
    _kinds: dict[str, str] = field(default_factory=dict)
    """Kind by path, including folders that no member names."""
    _folders: int = 0
    _sizes: dict[str, int] = field(default_factory=dict)
    """Size of each file by path."""

    def add(self, member: ArchiveMember) -> str:
        """Count a member, and return its path in its usual form.

        Raises:
            Refused: It is one too many, or cannot be written; the text says why.
        """
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise Refused(f"The {self.what} has more than {MAX_MEMBERS:,} members.")
        names = split_member_path(member.path)
        path = "/".join(names)
        self._path_bytes += len(path)
        if self._path_bytes > MAX_ALL_PATH_BYTES:
            raise Refused(
                f"The paths of the {self.what}'s members have more than {MAX_ALL_PATH_BYTES:,} bytes."
            )
        if names[-3:] == _BORROWED:
            raise Refused(
                f"The {self.what} has a repository that borrows objects from another one "
                "(objects/info/alternates): run `git repack -a -d` in it and delete that file."
            )
        if member.kind == "folder":
            self._add_folder(path)
            return path
        if not names:
            raise Refused(f"The {self.what} has a member without a name.")
        self._check(member, path)
        if path in self._kinds:
            raise Refused(f"The {self.what} has two members at one path.")
        self._add_folder(path.rpartition("/")[0])
        self._note(path, member.kind)
        return path

    def _check(self, member: ArchiveMember, path: str) -> None:
        """Check a member that is not a folder, and count its content."""
        if member.kind == "symlink":
            check_link(path, member.target)
            return
        if member.kind == "hardlink":
            original = "/".join(split_member_path(member.target))
            if original not in self._sizes:
                raise Refused(
                    f"The {self.what} has a hard link to something that it does not have."
                )
            size = self._sizes[original]
        elif member.kind == "file":
            size = member.size
        else:
            raise Refused(
                f"The {self.what} has something other than files, folders and links "
                "(a device, a socket, a sparse file): leave it out."
            )
        self._bytes += size
        if size < 0 or self._bytes > self.max_bytes:
            raise Refused(
                f"The {self.what} has more than {self.max_bytes:,} bytes of files "
                "(FANOUT_LIMITS__SNAPSHOT_BYTES): send what the job needs."
            )
        self._sizes[path] = size

    def _add_folder(self, path: str) -> None:
        """Count a folder and those above it, unless they are known."""
        while path:
            kind = self._kinds.get(path)
            if kind == "folder":
                return
            if kind == "symlink":
                raise Refused(f"The {self.what} has a member below a symlink.")
            if kind is not None:
                raise Refused(f"The {self.what} has two members at one path.")
            self._folders += 1
            if self._folders > MAX_FOLDERS:
                raise Refused(
                    f"The {self.what} has more than {MAX_FOLDERS:,} folders, with those that its "
                    "paths imply: send what the job needs."
                )
            self._note(path, "folder")
            path = path.rpartition("/")[0]

    def _note(self, path: str, kind: str) -> None:
        self._kinds[path] = kind
        self._repositories += path.rpartition("/")[2] == ".git"
        if self._repositories > MAX_REPOSITORIES:
            raise Refused(f"The {self.what} has more than {MAX_REPOSITORIES} Git repositories.")


def unpack(archive: Path, folder: Path, max_bytes: int) -> None:
    """Unpack an archive into an empty private folder.

    Args:
        archive: The archive; its format is detected from its content.
        folder: The folder; nothing outside of it is written.
        max_bytes: The maximum sum of its files.

    Raises:
        Refused: The archive is damaged, needs more than an honest one, or has members outside its
            root, links that lead out of it, or anything other than files, folders and links.
        OSError: The folder cannot be written.
    """
    with _explained(), archive.open("rb") as stream:
        inventory = Inventory(max_bytes)
        for member in _members(stream, max_bytes):
            inventory.add(member)
        stream.seek(0)
        write(_members(stream, max_bytes), folder, max_bytes)


def write_files(files: Mapping[str, bytes], folder: Path, max_bytes: int) -> None:
    """Write received files into an empty private folder.

    Args:
        files: Contents by path.
        folder: The folder; nothing outside of it is written.
        max_bytes: The maximum sum of the contents.

    Raises:
        Refused: A path leads out of the folder, or the files are too many or too large.
        OSError: The folder cannot be written.
    """
    members = [
        ArchiveMember(path, "file", 0o644, len(content), open=partial(io.BytesIO, content))
        for path, content in files.items()
    ]
    with _explained():
        inventory = Inventory(max_bytes)
        for member in members:
            inventory.add(member)
        write(members, folder, max_bytes)


def write(
    members: Iterator[ArchiveMember] | list[ArchiveMember], folder: Path, max_bytes: int
) -> None:
    """Write members that were counted before.

    Raises:
        Refused: One ends early, or has changed since it was counted.
        OSError: The folder cannot be written.
    """
    inventory = Inventory(max_bytes)
    links: dict[str, str] = {}
    for member in members:
        name = inventory.add(member)
        path = folder / name
        if member.kind == "folder":
            path.mkdir(mode=0o755, parents=True, exist_ok=True)
            continue
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if member.kind == "symlink":
            links[name] = member.target
        elif member.kind == "hardlink":
            _copy(path, folder.joinpath(*split_member_path(member.target)))
        else:
            _write(path, member.size, member.mode, member.open())
    for name, target in links.items():  # last, so that none is ever written through
        (folder / name).symlink_to(target)


def _copy(path: Path, original: Path) -> None:
    with original.open("rb") as source:
        status = os.fstat(source.fileno())
        _write(path, status.st_size, status.st_mode, source)


def _write(path: Path, size: int, mode: int, source: IO[bytes] | None) -> None:
    if source is None:
        raise Refused("The archive has a member without content.")
    with source, path.open("xb") as file:
        shutil.copyfileobj(source, file, _COPY_BYTES)
        if file.tell() != size:
            raise Refused("The archive ends early: send it again.")
        os.fchmod(file.fileno(), mode & PERMISSION_BITS | stat.S_IRUSR | stat.S_IWUSR)


def split_member_path(path: str) -> list[str]:
    """Return the names in a member's path, which stays below the archive's root.

    Raises:
        Refused: It does not, or cannot be created.
    """
    names = [name for name in path.split("/") if name not in {"", "."}]
    if path.startswith("/") or ".." in names or "\0" in path:
        raise Refused("The archive has a member outside its root: pack relative paths.")
    is_long = len(os.fsencode(path)) > MAX_PATH_BYTES or len(names) > MAX_NAMES
    if is_long or any(len(os.fsencode(name)) > 255 for name in names):  # noqa: PLR2004 - NAME_MAX
        raise Refused("The archive has a path that is too long or too deep.")
    return names


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise Refused("The archive has two members at one path.") from error
    except (UnicodeError, PathRefused) as error:
        raise Refused(f"The archive has an unusable path or link. {error}") from error
    except MemoryError as error:
        raise Refused("The archive takes too much memory to read.") from error
    except _DAMAGED as error:
        raise Refused("The archive cannot be read: send a tar, a tar.gz or a zip.") from error


def _members(stream: IO[bytes], max_bytes: int) -> Iterator[ArchiveMember]:
    head = stream.read(4)
    stream.seek(0)
    if head in {b"PK\x03\x04", b"PK\x05\x06"}:
        return _zip_members(stream)
    limit = max_bytes + MAX_MEMBERS * _HEADER_BYTES
    if head[:2] == b"\x1f\x8b":
        return _tar_members(_Bounded(gzip.GzipFile(fileobj=stream, mode="rb"), limit))
    return _tar_members(_Bounded(stream, limit))


class _Header(tarfile.TarInfo):
    """A header whose extended header has a limit before it is read."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if not self.isreg() and self.size > MAX_EXTENDED_BYTES:
            raise Refused("The archive has a header that is too large.")
        member: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc] # of tarfile
        return member


def _tar_members(stream: _Bounded) -> Iterator[ArchiveMember]:
    with tarfile.open(fileobj=stream, mode="r:", tarinfo=_Header) as archive:  # type: ignore[call-overload] # as much of a file as it uses
        while (info := archive.next()) is not None:
            archive.members.clear()  # it would keep all of them in memory
            yield _tar_member(archive, info)


def _tar_member(archive: tarfile.TarFile, info: tarfile.TarInfo) -> ArchiveMember:
    kinds = {
        "folder": info.isdir(),
        "symlink": info.issym(),
        "hardlink": info.islnk(),
        "file": info.isreg() and not info.issparse(),
    }
    kind = next((name for name, applies in kinds.items() if applies), "other")
    size = info.size if kind == "file" else 0
    return ArchiveMember(
        info.name, kind, info.mode, size, info.linkname, lambda: archive.extractfile(info)
    )


def _zip_members(stream: IO[bytes]) -> Iterator[ArchiveMember]:
    with zipfile.ZipFile(_Bounded(stream)) as archive:
        for info in archive.infolist():
            yield _zip_member(archive, info)


def _zip_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> ArchiveMember:
    if info.flag_bits & 1:
        raise Refused("The archive is encrypted: send one that is not.")
    if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise Refused("The archive uses a rare compression: send a tar.gz.")
    mode = info.external_attr >> 16
    format_ = stat.S_IFMT(mode)
    if info.is_dir():
        return ArchiveMember(info.filename, "folder")
    if stat.S_ISLNK(mode):
        if info.file_size > MAX_LINK_BYTES:
            raise Refused("The archive has a link with too many bytes.")
        with archive.open(info) as content:
            return ArchiveMember(
                info.filename, "symlink", target=os.fsdecode(content.read(MAX_LINK_BYTES))
            )
    kind = "file" if format_ in {0, stat.S_IFREG} else "other"
    mode = mode & PERMISSION_BITS or 0o644  # from an archiver without modes
    return ArchiveMember(info.filename, kind, mode, info.file_size, open=lambda: archive.open(info))


class _Bounded:
    """A stream that limits what is read at once, and in sum, to the needs of a valid archive.

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
            raise Refused("The archive has a header that is too large.")
        if size < 0:  # to its end, which zipfile has sought before
            size = _MAX_READ_BYTES
        if self._limit is not None and self._stream.tell() + size > self._limit:
            size = max(self._limit - self._stream.tell(), 0)
            if not size:
                raise Refused("The archive has more bytes than its files may have.")
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
            raise Refused("The archive has more bytes than its files may have.")
        return self._stream.seek(position)

    def close(self) -> None:
        """Do nothing: the stream belongs to its opener."""


def main(archive: str, folder: str, max_bytes: str) -> int:
    """Unpack an archive, and return the exit code."""
    try:
        unpack(Path(archive), Path(folder), int(max_bytes))
    except Refused as refusal:
        sys.stdout.write(str(refusal))
        return REFUSED
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return NO_ROOM
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
