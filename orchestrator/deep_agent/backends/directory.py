"""Files in a directory of this machine, and nowhere else.

Nothing leads out of the root, by links, `..` or races: each name of a path is opened relative to
its open parent and never followed by the kernel; a link is read and its names are resolved in the
same way. This is openat2's RESOLVE_BENEATH, which Python cannot call. All work is done in threads.
The public methods take and return path texts (`orchestrator.path_text`), all others the paths of
the operating system.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO, Concatenate, ParamSpec, TypeVar
from uuid import uuid4

from ...path_text import os_path, path_text
from ...portable.text_search import read_lines
from .matching import MAX_DEPTH, TextSearch
from .protocol import (
    AccessRefused,
    Entry,
    EntryKind,
    Hits,
    Walk,
)

MAX_LINKS = 40
"""Linux's limit on links in one path."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
P = ParamSpec("P")
T = TypeVar("T")

_BLOCK_BYTES = 1024**2
"""The size of a searched block; a longer line is searched in parts."""

_UNREADABLE = {errno.EACCES, errno.EPERM, errno.EIO}
"""Errors of a file that is there and cannot be read."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Without O_NONBLOCK, opening a pipe without a writer would block for ever."""

_CREATE = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE_MODE = 0o666


@dataclass(frozen=True)
class OpenedPlace:
    """A name in an open directory; there need not be anything of that name."""

    directory: int
    """A file descriptor, open while the context that gave this place is."""
    name: str

    def lstat(self) -> os.stat_result:
        """What is there, a link not followed; FileNotFoundError when nothing is."""
        return os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)


class DirectoryJail:
    """A directory that no path can leave: such a path raises PermissionError."""

    def __init__(self, root: Path, linked: Mapping[str, Path] | None = None) -> None:
        """Create a jail for an existing directory.

        Args:
            root: the directory.
            linked: directories into which absolute links may lead besides `root`, by the path that
                such a link starts with.
        """
        self._given_root = root
        self._linked = linked or {}

    @cached_property
    def _root(self) -> Path:
        """The directory by a path without links; each name of the given one would take a look."""
        return self._given_root.resolve(strict=True)

    @contextmanager
    def place(
        self,
        names: Sequence[str],
        *,
        follow_last: bool,
        make_parents: bool = False,
    ) -> Iterator[OpenedPlace]:
        """Where the last name is, its parents resolved.

        `follow_last` also follows links there.
        """
        with ExitStack() as opened:
            resolution = _Resolution(self._root, self._linked, opened, make_parents=make_parents)
            yield resolution.resolve(names, follow_last=follow_last)

    @contextmanager
    def directory(self, names: Sequence[str]) -> Iterator[int]:
        """Open a directory, for its descriptor; NotADirectoryError if it is anything else."""
        with self.place(names, follow_last=True) as place:
            descriptor = os.open(place.name, _DIRECTORY, dir_fd=place.directory)
            try:
                yield descriptor
            finally:
                os.close(descriptor)


class _Resolution:
    """A path being resolved: the open directories from the root to the current one."""

    def __init__(
        self,
        root: Path,
        linked: Mapping[str, Path],
        opened: ExitStack,
        *,
        make_parents: bool,
    ) -> None:
        self._root, self._linked = root, linked
        self._opened = opened
        self._make_parents = make_parents
        self._links = 0
        self._stack: list[int] = []
        self._stack.append(self._keep(os.open(self._root, _DIRECTORY)))

    def resolve(self, names: Sequence[str], *, follow_last: bool) -> OpenedPlace:
        ahead = list(reversed(names))
        while ahead:
            name = ahead.pop()
            if name == ".":
                continue
            if name == "..":
                self._go_up()
                continue
            place = OpenedPlace(self._stack[-1], name)
            if (ahead or follow_last) and self._is_link(place):
                ahead += reversed(self._target(place))
            elif not ahead:
                return place
            else:
                self._enter(place)
        return OpenedPlace(self._stack[-1], ".")

    def _go_up(self) -> None:
        if len(self._stack) == 1:
            raise PermissionError(errno.EACCES, "leads out of the directory")
        self._stack.pop()

    def _enter(self, place: OpenedPlace) -> None:
        if self._make_parents:
            with suppress(FileExistsError):
                os.mkdir(place.name, dir_fd=place.directory)
        self._stack.append(self._keep(os.open(place.name, _DIRECTORY, dir_fd=place.directory)))

    def _is_link(self, place: OpenedPlace) -> bool:
        try:
            return stat.S_ISLNK(place.lstat().st_mode)
        except FileNotFoundError:
            return False

    def _target(self, link: OpenedPlace) -> list[str]:
        """Return the names in a link's target; an absolute one must be below a known directory."""
        self._links += 1
        if self._links > MAX_LINKS:
            raise PermissionError(errno.ELOOP, "too many links")
        target = os.readlink(link.name, dir_fd=link.directory)
        return self._restart(target) if target.startswith("/") else _names(target)

    def _restart(self, target: str) -> list[str]:
        """Enter the directory of an absolute target, and return the names below it."""
        for prefix, directory in ((str(self._root), self._root), *self._linked.items()):
            if target == prefix or target.startswith(prefix.rstrip("/") + "/"):
                self._stack.clear()
                self._stack.append(self._keep(os.open(directory, _DIRECTORY)))
                return _names(target[len(prefix) :])
        raise PermissionError(errno.EACCES, "leads out of the directory")

    def _keep(self, descriptor: int) -> int:
        if len(self._stack) > MAX_DEPTH:
            os.close(descriptor)
            raise OSError(errno.ENAMETOOLONG, "too many directories")
        self._opened.callback(os.close, descriptor)
        return descriptor


def _joined(*parts: str) -> str:
    """Return a path below the root from its parts, of which some are `.` or empty."""
    return posixpath.normpath(posixpath.join(*parts))


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name]


class DirectoryBackend:
    """The files below `root`, seen by the agent below `mount`."""

    def __init__(
        self,
        root: Path | str,
        *,
        mount: str = "/workspace",
        also: Mapping[str, Path] | None = None,
    ) -> None:
        """Make a backend on an existing directory.

        Args:
            root: the directory.
            mount: the path under which the agent sees it.
            also: more directories by the paths under which the agent sees them; with some, absolute
                links may name what is below these paths or below `mount`.

        Raises:
            ValueError: `mount` is not a normalised absolute path.
        """
        if not mount.startswith("/") or posixpath.normpath(mount) != mount:
            raise ValueError(f"mount must be a normalised absolute path, not {mount}")
        self._mount = mount
        self.root = Path(root).absolute()
        roots = {mount: self.root, **(also or {})}
        linked = {**roots, **{str(each): each for each in roots.values()}} if also else {}
        self._roots = {prefix: roots[prefix] for prefix in sorted(roots, key=len, reverse=True)}
        self._jails = {
            prefix: DirectoryJail(roots[prefix], linked)
            for prefix in sorted(roots, key=len, reverse=True)
        }

    @property
    def search_root(self) -> str:
        """The mount point."""
        return path_text(self._mount)

    async def stat(self, path: str) -> Entry:
        return await self._in_thread(path, self._stat)

    async def lstat(self, path: str) -> Entry:
        """As `stat`, a link not followed."""
        return await self._in_thread(path, partial(self._stat, follow=False))

    async def real_path(self, path: str) -> str:
        """Return a path with its links resolved; AccessRefused if it leads out."""
        return await self._in_thread(path, self._real_path)

    async def list(self, path: str) -> Sequence[Entry]:
        return await self._in_thread(path, self._entries)

    async def read_bytes(
        self, path: str, max_bytes: int | None = None, *, offset: int = 0
    ) -> bytes:
        """See `Backend.read_bytes`; None reads to the end."""
        return await self._in_thread(path, self._read, max_bytes, offset)

    async def write_bytes(
        self, path: str, data: bytes, *, create_only: bool = False, mode: int | None = None
    ) -> None:
        """See `Backend.write_bytes`; `mode` sets the permission bits."""
        await self._in_thread(path, self._write, data, create_only, mode)

    async def delete(self, path: str) -> None:
        await self._in_thread(path, self._delete)

    async def walk(self, path: str, *, max_entries: int, timeout_seconds: float) -> Walk:
        deadline = time.monotonic() + timeout_seconds
        return await self._in_thread(path, self._walk, max_entries, deadline)

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
        return await self._in_thread(path, self._grep, text, only, max_hits, deadline)

    async def _in_thread(
        self, path: str, work: Callable[Concatenate[str, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run work on a path; an OSError names the whole path, not a part of it."""
        try:
            return await asyncio.to_thread(work, os_path(path), *args, **kwargs)
        except OSError as error:
            if error.filename is not None:
                error.filename = path
            raise
        except ValueError as error:  # a NUL, or a character that is not valid in a file name
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path) from error

    def _locate(self, path: str) -> tuple[DirectoryJail, Sequence[str]]:
        """The directory that a path is in, and the names below it.

        Raises:
            FileNotFoundError: the path is outside of the mount points.
        """
        for mount, jail in self._jails.items():
            if _is_below(path, mount):
                return jail, [name for name in path[len(mount) :].split("/") if name]
        raise FileNotFoundError(path)

    def _place(
        self, path: str, *, follow_last: bool, make_parents: bool = False
    ) -> AbstractContextManager[OpenedPlace]:
        jail, names = self._locate(path)
        return jail.place(names, follow_last=follow_last, make_parents=make_parents)

    def _directory(self, path: str) -> AbstractContextManager[int]:
        jail, names = self._locate(path)
        return jail.directory(names)

    def _real_path(self, path: str) -> str:
        mount = next((each for each in self._roots if _is_below(path, each)), None)
        if mount is None:
            return path_text(path)
        real = os.path.realpath(self._roots[mount] / path[len(mount) :].strip("/"))
        for mount, root in self._roots.items():
            if _is_below(real, top := os.path.realpath(root)):
                found = posixpath.join(mount, real[len(top) :].strip("/")).rstrip("/")
                return path_text(found)
        raise AccessRefused(f"{path_text(path)} leads out of the directory.")

    def _above_mount(self, path: str) -> Entry | None:
        """Return the only entry of a directory above the mount point: the next directory."""
        if path in self._jails or not (path == "/" or self._mount.startswith(path + "/")):
            return None
        rest = self._mount[len(path) :].strip("/")
        above = path_text(posixpath.join(path, rest.split("/")[0]))
        return Entry(path=above, kind="directory")

    def _stat(self, path: str, *, follow: bool = True) -> Entry:
        if self._above_mount(path):
            return Entry(path=path_text(path), kind="directory")
        with self._place(path, follow_last=follow) as place:
            return _entry(path, place.lstat())

    def _entries(self, path: str) -> Sequence[Entry]:
        above = self._above_mount(path)
        if above:
            return [above]
        with self._directory(path) as directory, os.scandir(directory) as found:
            entries = []
            for item in found:
                with suppress(FileNotFoundError):  # it was removed after the listing
                    status = item.stat(follow_symlinks=False)
                    entries.append(_entry(posixpath.join(path, item.name), status))
        return sorted(entries, key=lambda entry: entry.path)

    def _read(self, path: str, max_bytes: int | None, offset: int) -> bytes:
        if self._above_mount(path):
            raise IsADirectoryError(path)
        with self._place(path, follow_last=True) as place, _opened(place) as file:
            file.seek(offset)
            return file.read(-1 if max_bytes is None else max_bytes)

    def _write(self, path: str, data: bytes, create_only: bool, mode: int | None) -> None:
        if self._above_mount(path):
            raise IsADirectoryError(path)
        try:
            self._locate(path)
        except FileNotFoundError:
            raise PermissionError(path) from None
        with self._place(path, follow_last=not create_only, make_parents=True) as place:
            existing = _existing_mode(place, create_only=create_only)
            mode = existing if mode is None else mode
            _put(place, data, mode=mode, create_only=create_only)

    def _create(self, path: str) -> int:
        """Create a file and its directories, and return its descriptor; nothing is followed."""
        with self._place(path, follow_last=False, make_parents=True) as place:
            return os.open(place.name, _CREATE, _NEW_FILE_MODE, dir_fd=place.directory)

    def _delete(self, path: str) -> None:
        if self._above_mount(path) or path in self._jails:
            raise PermissionError(path)
        with self._place(path, follow_last=False) as place:
            if stat.S_ISDIR(place.lstat().st_mode):
                _remove_tree(place)
            else:
                os.unlink(place.name, dir_fd=place.directory)

    def _walk(self, path: str, max_entries: int, deadline: float) -> Walk:
        if self._above_mount(path):
            path = self._mount
        entries: list[Entry] = []
        for name, found, _ in self._files(path):
            if len(entries) >= max_entries or time.monotonic() > deadline:
                return Walk(entries=_sorted(entries), complete=False)
            entries.append(_entry(name, found))
        return Walk(entries=_sorted(entries))

    def _grep(
        self, path: str, text: str, only: Sequence[str] | None, max_hits: int, deadline: float
    ) -> Hits:
        search = TextSearch(text, max_hits=max_hits, deadline=deadline)
        only = None if only is None else [*map(os_path, only)]
        for name, place in self._searched(path, only):
            if search.is_over:
                break
            try:
                with _opened(place) as file:
                    search.file(path_text(name), read_lines(file, _BLOCK_BYTES, search.overlap))
            except OSError as error:
                if error.errno in _UNREADABLE:
                    search.leave_out(path_text(name))
        return search.result()

    def _searched(self, path: str, only: Sequence[str] | None) -> Iterator[tuple[str, OpenedPlace]]:
        """Yield the files to search, each with its open parent."""
        if only is None and self._above_mount(path) is None and self._stat(path).kind == "file":
            only = [path]
        if only is not None:
            for name in only:
                with suppress(OSError), self._place(name, follow_last=False) as place:
                    yield name, place
            return
        for name, found, place in self._files(self._mount if self._above_mount(path) else path):
            if stat.S_ISREG(found.st_mode):
                yield name, place

    def _files(self, path: str) -> Iterator[tuple[str, os.stat_result, OpenedPlace]]:
        """Yield the paths below a directory except directories, each with its open parent.

        Links are not followed.
        """
        with self._directory(path) as top:
            for relative, directories, names, descriptor in os.fwalk(
                ".", dir_fd=top, follow_symlinks=False
            ):
                links = [name for name in directories if _is_link(name, descriptor)]
                directories[:] = sorted(set(directories) - set(links) - {".git"})
                if relative.count("/") >= MAX_DEPTH:
                    directories.clear()
                for name in sorted({*names, *links}):
                    place = OpenedPlace(directory=descriptor, name=name)
                    with suppress(OSError):
                        full = posixpath.normpath(posixpath.join(path, relative, name))
                        yield full, place.lstat(), place


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")


def _is_link(name: str, directory: int) -> bool:
    with suppress(OSError):
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    return True


@contextmanager
def _opened(place: OpenedPlace) -> Iterator[BinaryIO]:
    """Open a regular file for reading."""
    descriptor = os.open(place.name, _READ, dir_fd=place.directory)
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(place.name)
        if not stat.S_ISREG(mode):
            raise PermissionError(errno.EINVAL, os.strerror(errno.EINVAL), place.name)
        yield file


def _remove_tree(place: OpenedPlace) -> None:
    try:
        shutil.rmtree(place.name, dir_fd=place.directory)
    except RecursionError:
        raise OSError(errno.ENAMETOOLONG, "too many directories in each other") from None


def _existing_mode(place: OpenedPlace, *, create_only: bool) -> int | None:
    """Return the permissions to keep; None for a new file."""
    try:
        found = place.lstat()
    except FileNotFoundError:
        return None
    if create_only:
        raise FileExistsError(place.name)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(place.name)
    if not stat.S_ISREG(found.st_mode):
        raise PermissionError(errno.EINVAL, os.strerror(errno.EINVAL), place.name)
    return stat.S_IMODE(found.st_mode)


def _put(place: OpenedPlace, data: bytes, *, mode: int | None, create_only: bool) -> None:
    """Write a temporary file in the same folder and move it into place.

    A reader sees the old file or the new one, never half.
    """
    draft = f".fanout-{uuid4().hex}~"  # such names are never listed as changes
    descriptor = os.open(draft, _CREATE, _NEW_FILE_MODE, dir_fd=place.directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if mode is not None:
                os.fchmod(descriptor, mode)
        ends: Any = {"src_dir_fd": place.directory, "dst_dir_fd": place.directory}
        if create_only:
            os.link(draft, place.name, **ends)  # it fails if the target exists, unlike a rename
        else:
            os.replace(draft, place.name, **ends)  # noqa: PTH105 - pathlib has no dir_fd
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=place.directory)


def _entry(path: str, found: os.stat_result) -> Entry:
    return Entry(
        path=path_text(path),
        kind=_kind(found.st_mode),
        size_bytes=found.st_size,
        modified_at=found.st_mtime,
        mode=stat.S_IMODE(found.st_mode),
    )


def _kind(mode: int) -> EntryKind:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def _sorted(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.path))


class FilesystemBackend(DirectoryBackend):
    """The files below a directory, which the agent sees as `/` and cannot leave.

    Args:
        root_dir: An existing directory; a relative one is below the working directory of now.

    Raises:
        ValueError: There is no such directory.
    """

    def __init__(self, root_dir: Path | str = ".") -> None:
        root = Path(root_dir).absolute()
        if not root.is_dir():
            raise ValueError(f"root_dir must be an existing directory; {root} is not one.")
        super().__init__(root, mount="/")
