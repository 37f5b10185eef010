"""Files in a directory of this machine, and nowhere else.

Nothing leads out of the root: paths are resolved one name at a time on open directories
(`jail.py`), so a link that is swapped in between two steps leads nowhere either. All work is done
in threads.
"""

# ruff: noqa: D102 - the protocol says what each method means

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from orchestrator.deep_agent.backends.jail import Jail, Place
from orchestrator.deep_agent.backends.matching import hits_in
from orchestrator.deep_agent.backends.paths import MAX_DEPTH
from orchestrator.deep_agent.backends.protocol import Entry, EntryKind, Hit, Hits, Walk

MAX_SEARCHED_BYTES = 10 * 1024**2
"""Larger files are not searched: they are data, and reading them takes the time of all others."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever."""

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE_MODE = 0o666


class DirectoryBackend:
    """The files below `root`, seen by the agent below `mount`."""

    def __init__(self, root: Path, *, mount: str = "/workspace") -> None:
        """A backend on an existing directory.

        ValueError when `mount` is not a normalised absolute path.
        """
        if not mount.startswith("/") or posixpath.normpath(mount) != mount:
            raise ValueError(f"mount must be a normalised absolute path, not {mount}")
        self._jail = Jail(root)
        self._mount = mount

    @property
    def search_root(self) -> str:
        """The mount point."""
        return self._mount

    async def stat(self, path: str) -> Entry:
        return await asyncio.to_thread(self._stat, path)

    async def list(self, path: str) -> Sequence[Entry]:
        return await asyncio.to_thread(self._entries, path)

    async def read_bytes(self, path: str, max_bytes: int) -> bytes:
        return await asyncio.to_thread(self._read, path, max_bytes)

    async def write_bytes(self, path: str, data: bytes, *, create_only: bool = False) -> None:
        await asyncio.to_thread(self._write, path, data, create_only=create_only)

    async def delete(self, path: str) -> None:
        await asyncio.to_thread(self._delete, path)

    async def walk(self, path: str, *, max_entries: int, timeout_seconds: float) -> Walk:
        deadline = time.monotonic() + timeout_seconds
        return await asyncio.to_thread(self._walk, path, max_entries, deadline)

    async def grep(
        self,
        text: str,
        path: str,
        *,
        only: Sequence[str] | None,
        max_hits: int,
        timeout_seconds: float,
    ) -> Hits:
        deadline = time.monotonic() + timeout_seconds
        return await asyncio.to_thread(self._grep, text, path, only, max_hits, deadline)

    def _names(self, path: str) -> Sequence[str]:
        """The path below the root, in names; FileNotFoundError above or beside the mount point."""
        if self._mount == "/":
            return [name for name in path.split("/") if name]
        if path != self._mount and not path.startswith(self._mount + "/"):
            raise FileNotFoundError(path)
        return [name for name in path[len(self._mount) :].split("/") if name]

    def _above_mount(self, path: str) -> Entry | None:
        """The only thing in a directory above the mount point: the way to it."""
        if path == self._mount or not (path == "/" or self._mount.startswith(path + "/")):
            return None
        rest = self._mount[len(path) :].strip("/")
        return Entry(path=posixpath.join(path, rest.split("/")[0]), kind="directory")

    def _stat(self, path: str) -> Entry:
        if self._above_mount(path):
            return Entry(path=path, kind="directory")
        with self._jail.place(self._names(path), follow_last=True) as place:
            return _entry(path, place.lstat())

    def _entries(self, path: str) -> Sequence[Entry]:
        above = self._above_mount(path)
        if above:
            return [above]
        with self._jail.directory(self._names(path)) as directory, os.scandir(directory) as found:
            entries = []
            for item in found:
                with suppress(FileNotFoundError):  # gone since it was listed
                    status = item.stat(follow_symlinks=False)
                    entries.append(_entry(posixpath.join(path, item.name), status))
        return sorted(entries, key=lambda entry: entry.path)

    def _read(self, path: str, max_bytes: int) -> bytes:
        if self._above_mount(path):
            raise IsADirectoryError(path)
        with self._jail.place(self._names(path), follow_last=True) as place:
            return _read(place, max_bytes)

    def _write(self, path: str, data: bytes, *, create_only: bool) -> None:
        if self._above_mount(path):
            raise IsADirectoryError(path)
        try:
            names = self._names(path)
        except FileNotFoundError:
            raise PermissionError(path) from None
        with self._jail.place(names, follow_last=not create_only, make_parents=True) as place:
            mode = _existing_mode(place, create_only=create_only)
            _put(place, data, mode=mode, create_only=create_only)

    def _delete(self, path: str) -> None:
        if self._above_mount(path) or path == self._mount:
            raise PermissionError(path)
        with self._jail.place(self._names(path), follow_last=False) as place:
            if stat.S_ISDIR(place.lstat().st_mode):
                _remove_tree(place)
            else:
                os.unlink(place.name, dir_fd=place.directory)

    def _walk(self, path: str, max_entries: int, deadline: float) -> Walk:
        if self._above_mount(path):
            path = self._mount
        entries: list[Entry] = []
        for entry, _ in self._files(path):
            if len(entries) >= max_entries or time.monotonic() > deadline:
                return Walk(entries=_sorted(entries), complete=False)
            entries.append(entry)
        return Walk(entries=_sorted(entries))

    def _grep(
        self, text: str, path: str, only: Sequence[str] | None, max_hits: int, deadline: float
    ) -> Hits:
        found: list[Hit] = []
        complete = True
        for name, data in self._searched(path, only):
            for hit in hits_in(data, text, name):
                if len(found) < max_hits:
                    found.append(hit)
                else:
                    complete = False
            if time.monotonic() > deadline or not complete:
                complete = False
                break
        return Hits(hits=tuple(found), complete=complete)

    def _searched(self, path: str, only: Sequence[str] | None) -> Iterator[tuple[str, bytes]]:
        """The files to search with what is in them; one that cannot be read is passed over."""
        if only is None and self._above_mount(path) is None and self._stat(path).kind == "file":
            only = [path]
        if only is not None:
            for name in only:
                with (
                    suppress(OSError),
                    self._jail.place(self._names(name), follow_last=False) as place,
                ):
                    yield name, _read(place, MAX_SEARCHED_BYTES)
            return
        for entry, place in self._files(self._mount if self._above_mount(path) else path):
            if entry.kind == "file" and entry.size_bytes <= MAX_SEARCHED_BYTES:
                with suppress(OSError):
                    yield entry.path, _read(place, MAX_SEARCHED_BYTES)

    def _files(self, path: str) -> Iterator[tuple[Entry, Place]]:
        """Everything below a directory but directories, each with its open parent.

        Links are not followed.
        """
        with self._jail.directory(self._names(path)) as top:
            for relative, directories, names, descriptor in os.fwalk(
                ".", dir_fd=top, follow_symlinks=False
            ):
                links = [name for name in directories if _is_link(name, descriptor)]
                directories[:] = sorted(set(directories) - set(links) - {".git"})
                if relative.count("/") >= MAX_DEPTH:
                    directories.clear()
                for name in sorted([*names, *links]):
                    place = Place(directory=descriptor, name=name)
                    with suppress(OSError):
                        full = posixpath.normpath(posixpath.join(path, relative, name))
                        yield _entry(full, place.lstat()), place


def _is_link(name: str, directory: int) -> bool:
    with suppress(OSError):
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    return True


def _read(place: Place, max_bytes: int) -> bytes:
    descriptor = os.open(place.name, _READ, dir_fd=place.directory)
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(place.name)
        if not stat.S_ISREG(mode):
            raise PermissionError(place.name)
        return file.read(max_bytes)


def _remove_tree(place: Place) -> None:
    try:
        shutil.rmtree(place.name, dir_fd=place.directory)
    except RecursionError:
        raise OSError(errno.ENAMETOOLONG, "too many directories in each other") from None


def _existing_mode(place: Place, *, create_only: bool) -> int | None:
    """The permissions to keep; None for a new file."""
    try:
        found = place.lstat()
    except FileNotFoundError:
        return None
    if create_only:
        raise FileExistsError(place.name)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(place.name)
    if not stat.S_ISREG(found.st_mode):
        raise PermissionError(place.name)
    return stat.S_IMODE(found.st_mode)


def _put(place: Place, data: bytes, *, mode: int | None, create_only: bool) -> None:
    """Write beside the place and move into it.

    A reader sees the old file or the new one, never half.
    """
    draft = f".{uuid4().hex}.part"
    descriptor = os.open(draft, _CREATE, _NEW_FILE_MODE, dir_fd=place.directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if mode is not None:
                os.fchmod(descriptor, mode)
        ends: Any = {"src_dir_fd": place.directory, "dst_dir_fd": place.directory}
        if create_only:
            os.link(
                draft, place.name, **ends
            )  # fails when anything is there, which a rename does not
        else:
            os.replace(draft, place.name, **ends)  # noqa: PTH105 - pathlib has no dir_fd
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=place.directory)


def _entry(path: str, found: os.stat_result) -> Entry:
    return Entry(
        path=path, kind=_kind(found.st_mode), size_bytes=found.st_size, modified_at=found.st_mtime
    )


def _kind(mode: int) -> EntryKind:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def _sorted(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.path))
