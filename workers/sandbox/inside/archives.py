"""Tar archives: unpacks snapshots and layers, which are not trusted, and adds members. Stdlib only.

The steward unpacks with it inside its container, the worker for the local provider.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from typing import Self

    from .files import Upload

MAX_NAMES = 257
"""The most names in a path of a layer: a collection goes into 256 nested folders."""
MAX_FOLDERS = 500_000
"""That an archive makes, with those that its paths imply: five times as many as any known project
has. A path of 4 KB implies a thousand."""
MAX_EXTENDED_BYTES = 64 * 1024
"""The largest extended header of a member: a path and a few attributes. The time in which `tarfile`
reads one grows with the square of its size in Python before 3.11.10 and 3.12.6."""
_MAX_PATH = 4096
"""The longest path that Linux opens."""
_COPY_BYTES = 1 << 20
"""The bytes copied at once: enough to be quick, and little memory for a process."""
_BLOCK_BYTES = 4096
"""The bytes of a disk's block."""
_ENTRY_BYTES = 1024
"""The bytes of an inode and a directory entry."""
_USUAL_HEADER = re.compile(
    rb"([0-7]{7})\0(?:[0-7]{7}\0){2}([0-7]{11})\0([0-7]{11})\0([0-7]{6})\0 ([05])\0{100}"
    rb"ustar\x0000.{64}(?:\0{8}|[0-7]{7}\0){2}\0{167}",
    re.DOTALL,
)
"""After its name: of a file or folder in a ustar archive, with a path of 100 bytes at most."""
ARCHIVE_END = bytes(2 * tarfile.BLOCKSIZE)
_HEADER = bytearray(tarfile.TarInfo("").tobuf(tarfile.GNU_FORMAT))
"""The header of a file of `write_member`. Its checksum counts as eight spaces in the checksum."""
_HEADER[148:156] = b" " * 8


class MemberSource(Protocol):
    """A stream of an archive."""

    def read(self, size: int, /) -> bytes:
        """Read as `IO.read` does."""

    def seek(self, offset: int, /) -> int:
        """Change the position."""

    def tell(self) -> int:
        """Return the position."""


class UnusableArchive(Exception):
    """The archive is damaged, or holds something that a snapshot may not hold."""


class Arriving:
    """The stream of an archive whose end may not have arrived yet."""

    def __init__(self, upload: Upload, size: int) -> None:
        """Open it.

        Args:
            upload: what has arrived.
            size: that of the whole.
        """
        self._upload, self._size = upload, size
        self._file = Path(upload.path).open("rb")  # noqa: SIM115 - `close` closes it
        self.seek, self.tell, self.close = self._file.seek, self._file.tell, self._file.close

    def read(self, size: int) -> bytes:
        """Read as `IO.read` does, after waiting for what is read.

        Raises:
            UnusableArchive: the client has given up.
        """
        self._wait_for(self._file.tell() + size)
        return self._file.read(size)

    def wait(self) -> None:
        """Wait for the end.

        Raises:
            UnusableArchive: the client has given up.
        """
        self._wait_for(self._size)

    def _wait_for(self, end: int) -> None:
        if not self._upload.wait_for(min(end, self._size)):
            raise UnusableArchive("it was not sent to its end")


def add_member(archive: tarfile.TarFile, name: str, content: bytes | IO[bytes], size: int) -> None:
    """Add a file of `size` bytes, owned by root and without a time, to an open archive."""
    member = tarfile.TarInfo(name)
    member.size = size
    archive.addfile(member, io.BytesIO(content) if isinstance(content, bytes) else content)


def write_member(out: IO[bytes], name: str, content: bytes | Path) -> None:
    """Write a file as `add_member` does, to an archive that may only be written; much faster.

    Args:
        out: the archive; it ends with `ARCHIVE_END`.
        name: of 100 bytes at most.
        content: itself, or a file that holds it and does not change.
    """
    size = len(content) if isinstance(content, bytes) else content.stat().st_size
    header = bytearray(_HEADER)
    header[: len(name)] = name.encode()
    header[124:135] = b"%011o" % size
    header[148:155] = b"%06o\0" % sum(header)
    out.write(header)
    if isinstance(content, bytes):
        out.write(content)
    else:
        with content.open("rb") as file:
            shutil.copyfileobj(file, out, _COPY_BYTES)
    out.write(bytes(-size % tarfile.BLOCKSIZE))


def unpack(
    archive: Path | MemberSource,
    target: Path,
    own: Callable[[str], None],
    removed: list[str] | None = None,
) -> int:
    """Unpack a plain tar into an empty folder. Times and permission bits are restored.

    Args:
        archive: the file, or a stream of it; not trusted.
        target: the folder; nothing outside of it is written, and nobody else writes into it.
        own: is called with each path that was made, to set its owner; must not follow links.
        removed: gets the paths that a layer removes, which are members as of an overlay: character
            devices 0, 0. None: the archive is no layer.

    Returns:
        About how many bytes of a disk the files take.

    Raises:
        UnusableArchive: the archive is damaged, or has a member that is not a file, a folder or a
            symlink inside the target. What was unpacked until then stays.
        OSError: the file system refused.
    """
    if isinstance(archive, Path):
        with archive.open("rb") as file:
            return unpack(file, target, own, removed)
    unpacking = _Unpacking(archive, os.fspath(target), own, removed)
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", archive), mode="r:", tarinfo=_Header) as tar:
            while (member := tar.next()) is not None:
                unpacking.add(member)
                tar.members.clear()  # type: ignore[attr-defined]  # it would keep them all
        unpacking.finish()
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise UnusableArchive(f"it is damaged ({type(error).__name__})") from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise UnusableArchive("it has two members at one path") from error
    return unpacking.size


class _Header(tarfile.TarInfo):
    """A member whose header, if it is a usual one, is read in a third of the time."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a header."""
        name, usual = buf[:100].rstrip(b"\0"), _USUAL_HEADER.fullmatch(buf, 100)
        if usual is None or not name.isascii() or b"\0" in name:
            return super().frombuf(buf, encoding, errors)
        mode, size, mtime, checksum = (int(usual[group], 8) for group in range(1, 5))
        if sum(buf) - sum(buf[148:156]) + sum(b" " * 8) != checksum:
            return super().frombuf(buf, encoding, errors)
        member = cls(name.decode().rstrip("/") if usual[5] == tarfile.DIRTYPE else name.decode())
        member.mode, member.size, member.mtime, member.type = mode, size, mtime, usual[5]
        member.chksum = checksum
        return member

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if not self.isreg() and self.size > MAX_EXTENDED_BYTES:
            raise UnusableArchive("it has a header that is too large")
        member: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]  # of tarfile
        return member


class _Unpacking:
    """The state of unpacking one archive into a folder."""

    def __init__(
        self,
        source: MemberSource,
        target: str,
        own: Callable[[str], None],
        removed: list[str] | None,
    ) -> None:
        self._source, self._target, self._own, self._removed = source, target, own, removed
        self._links: list[tuple[str, str]] = []
        self._folders: list[tuple[str, int, float]] = []
        self._made = {target}
        """The folders that exist: there are no links yet, and nobody else removes one."""
        self.size = 0
        """The bytes of the created files on a disk."""

    def add(self, member: tarfile.TarInfo) -> None:
        """Unpack a member; links and the attributes of folders wait for `finish`."""
        name = member.name
        if name.startswith("/") or ".." in name.split("/"):
            raise UnusableArchive("it has a member outside its root")
        if len(name) > _MAX_PATH:
            raise UnusableArchive("it has a path that is too long")
        if self._removed is not None:
            _check_path(name.split("/"))
        path = f"{self._target}/{name}"
        self.size += -(-member.size // _BLOCK_BYTES) * _BLOCK_BYTES + _ENTRY_BYTES
        if member.issym():
            self._links.append((name, member.linkname))
        elif member.isdir():
            self._make_folder(path)
            self._folders.append((path, member.mode, member.mtime))
        elif member.isreg() and not member.issparse():
            self._make_folder(path.rpartition("/")[0])
            self._write_file(member, path)
        elif self._removed is not None and _is_whiteout(member):
            self._removed.append(name)
        else:
            raise UnusableArchive("it has a member that is not a file, a folder or a symlink")

    def finish(self) -> None:
        """Create the links last, so that no member is written through one; restore the folders."""
        for name, destination in self._links:
            above = name.rpartition("/")[0]
            while above:
                if Path(self._target, above).is_symlink():
                    raise UnusableArchive("it has a member below a symlink")
                above = above.rpartition("/")[0]
            path = f"{self._target}/{name}"
            self._make_folder(path.rpartition("/")[0])
            Path(path).symlink_to(destination)
            self._own(path)
        for path, mode, time in reversed(self._folders):
            Path(path).chmod(mode & 0o777)
            os.utime(path, (time, time))

    def _make_folder(self, path: str) -> None:
        """Create a folder and those above it that no member names."""
        missing = []
        while path not in self._made:
            missing.append(path)
            path = path.rpartition("/")[0]
        if len(self._made) + len(missing) > MAX_FOLDERS:
            raise UnusableArchive(f"it has more than {MAX_FOLDERS} folders")
        for folder in reversed(missing):
            try:
                Path(folder).mkdir(0o755)
            except FileExistsError:
                if not Path(folder).is_dir():
                    raise NotADirectoryError from None
            else:
                self._own(folder)
            self._made.add(folder)

    def _write_file(self, member: tarfile.TarInfo, path: str) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            self._source.seek(member.offset_data)
            left = member.size
            while left:
                part = self._source.read(min(left, _COPY_BYTES))
                if not part:
                    raise UnusableArchive("it ends early")
                left -= len(part)
                written = os.write(descriptor, part)
                while written < len(part):
                    written += os.write(descriptor, part[written:])
            self._own(path)  # before its mode, of which a new owner takes bits away
            os.fchmod(descriptor, member.mode & 0o777)
            os.utime(descriptor, (member.mtime, member.mtime))
        finally:
            os.close(descriptor)


def _check_path(names: list[str]) -> None:
    """Refuse a path that no collection writes."""
    if {"", "."}.intersection(names):
        raise UnusableArchive("it has a path that is written in another way than it is found")
    if len(names) > MAX_NAMES:
        raise UnusableArchive(f"it has a path of more than {MAX_NAMES} names")


def _is_whiteout(member: tarfile.TarInfo) -> bool:
    """Return whether a member marks a path as removed."""
    return member.ischr() and not (member.devmajor or member.devminor)
