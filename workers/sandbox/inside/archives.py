"""Tar archives: unpacks snapshots and layers, which are not trusted, and adds members. Stdlib only.

The steward unpacks with it inside its container, the worker for the local provider.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

MAX_NAMES = 257
"""In a path of a layer: a collection goes into 256 folders, one in another."""
_COPY_BYTES = 1 << 20
"""Copied at once: large enough to be quick, small beside a process."""


class UnusableArchive(Exception):
    """The archive is damaged, or holds something that a snapshot may not hold."""


def add_member(archive: tarfile.TarFile, name: str, content: bytes | IO[bytes], size: int) -> None:
    """Add a file of `size` bytes, owned by root and without a time, to an open archive."""
    member = tarfile.TarInfo(name)
    member.size = size
    archive.addfile(member, io.BytesIO(content) if isinstance(content, bytes) else content)


def unpack(
    archive: Path, target: Path, own: Callable[[Path], None], removed: list[str] | None = None
) -> None:
    """Unpack a plain tar into an empty folder. Times and permission bits are restored.

    Args:
        archive: the file; not trusted.
        target: the folder; nothing outside of it is written.
        own: is called with each path that was made, to set its owner; must not follow links.
        removed: gets the paths that a layer removes, which are members as of an overlay: character
            devices 0, 0. None: the archive is no layer.

    Raises:
        UnusableArchive: the archive is damaged, or has a member that is not a file, a folder or a
            symlink inside the target. What was unpacked until then stays.
        OSError: the file system refused.
    """
    unpacking = _Unpacking(target, own, removed)
    try:
        with tarfile.open(archive, "r:") as tar:
            for member in tar:
                unpacking.add(tar, member)
        unpacking.finish()
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise UnusableArchive(f"it is damaged ({type(error).__name__})") from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise UnusableArchive("it has two members at one path") from error


class _Unpacking:
    """The state of unpacking one archive into a folder."""

    def __init__(
        self, target: Path, own: Callable[[Path], None], removed: list[str] | None
    ) -> None:
        self._target, self._own, self._removed = target, own, removed
        self._links: list[tuple[Path, str]] = []
        self._folders: list[tuple[Path, tarfile.TarInfo]] = []

    def add(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Unpack a member; links and the attributes of folders wait for `finish`."""
        if member.name.startswith("/") or ".." in member.name.split("/"):
            raise UnusableArchive("it has a member outside its root")
        if self._removed is not None:
            _check_path(member.name.split("/"))
        path = self._target / member.name
        if member.issym():
            self._links.append((path, member.linkname))
        elif member.isdir():
            self._make_folders(path)
            self._folders.append((path, member))
        elif member.isreg() and not member.issparse():
            self._make_folders(path.parent)
            _write_file(tar, member, path)
            self._own(path)
            _restore(path, member)
        elif self._removed is not None and _is_whiteout(member):
            self._removed.append(member.name)
        else:
            raise UnusableArchive("it has a member that is not a file, a folder or a symlink")

    def finish(self) -> None:
        """Create the links last, so that no member is written through one; restore the folders."""
        for path, destination in self._links:
            above = path.relative_to(self._target).parents
            if any((self._target / folder).is_symlink() for folder in above):
                raise UnusableArchive("it has a member below a symlink")
            self._make_folders(path.parent)
            path.symlink_to(destination)
            self._own(path)
        for path, member in reversed(self._folders):
            _restore(path, member)

    def _make_folders(self, path: Path) -> None:
        """Create a folder and those above it that no member names."""
        missing = []
        while not path.exists():
            missing.append(path)
            path = path.parent
        if not path.is_dir():
            raise NotADirectoryError
        for folder in reversed(missing):
            folder.mkdir(mode=0o755)
            self._own(folder)


def _check_path(names: list[str]) -> None:
    """Refuse a path that no collection writes."""
    if {"", "."}.intersection(names):
        raise UnusableArchive("it has a path that is written in another way than it is found")
    if len(names) > MAX_NAMES:
        raise UnusableArchive(f"it has a path of more than {MAX_NAMES} names")


def _is_whiteout(member: tarfile.TarInfo) -> bool:
    """Return whether a member marks a path as removed."""
    return member.ischr() and not (member.devmajor or member.devminor)


def _write_file(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    source = tar.extractfile(member)
    if source is None:
        raise UnusableArchive("it has a member without content")
    with path.open("xb") as file:
        shutil.copyfileobj(source, file, _COPY_BYTES)
        if file.tell() != member.size:
            raise UnusableArchive("it ends early")


def _restore(path: Path, member: tarfile.TarInfo) -> None:
    path.chmod(member.mode & 0o777)
    os.utime(path, (member.mtime, member.mtime))
