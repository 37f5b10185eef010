"""Access to the files below one folder, such that no path and no symlink leads out of it.

A `Folder` takes and returns path texts (`orchestrator.path_text`).

Every step of a path is opened relative to the directory before it and never through a link, so a
link that is created between a check and its use has no effect.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..executable_config import is_git_data
from ..path_text import os_path, path_text

if TYPE_CHECKING:
    from ..jobs.changes import FileKind

MAX_HELD_BYTES = 64 * 1024**2
"""A file up to this size, the largest in a change bundle, is read into memory; others are only
hashed."""

PERMISSION_BITS = 0o777
"""The bits of a mode that are copied: set-user-id and similar bits never are."""

_CHUNK_BYTES = 1024 * 1024
"""The bytes read at once: enough to be quick, and little memory for a process."""
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""The flags for opening a file by its last name: links are not followed, and pipes do not block."""


Identity = tuple[int, ...]


class PathRefused(ValueError):
    """The path leaves the folder, goes through a symlink, or names Git's own data."""


class ChangedMeanwhile(Exception):
    """Another process changed the file between its reading and its writing."""

    def __str__(self) -> str:
        return "The file kept changing while it was written."


@dataclass(frozen=True, kw_only=True)
class Found:
    """The entry at a path. Equal contents have equal `kind` and `sha256`."""

    kind: FileKind | None
    """None for a special file."""
    mode: int
    sha256: str | None = None
    """The hash of a file's bytes or of a symlink's target; None for a directory."""
    content: bytes | None = None
    """None for a directory, and for a file over `MAX_HELD_BYTES`."""
    identity: Identity = ()
    """A value that differs after every change of the file; empty for one that is not on the disk
    yet."""


class Folder(Protocol):
    """The folder that is merged into; paths are relative to it.

    Where a method takes `instead_of`, it is the entry that `find` returned for the path;
    `ChangedMeanwhile` is raised if the entry is no longer that one.
    """

    def find(self, path: str) -> Found | None:
        """Return the entry at the path."""

    def names(self, path: str) -> frozenset[str]:
        """Return the names in a directory; empty when it does not exist."""

    def put_file(self, path: str, content: bytes, mode: int, instead_of: Found | None) -> None:
        """Write a whole file."""

    def put_link(self, path: str, target: bytes, instead_of: Found | None) -> None:
        """Write a symlink."""

    def put_directory(self, path: str, mode: int) -> None:
        """Create a directory; an existing one does not change."""

    def set_mode(self, path: str, mode: int, instead_of: Found) -> None:
        """Change a file's permission bits."""

    def remove(self, path: str, instead_of: Found) -> None:
        """Remove a file or a link."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""


class RootedFolder:
    """The files below a folder; paths are relative to it, with `/`.

    Every method raises PathRefused for a path that leads out of the folder, and OSError as `os`
    does.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def find(self, path: str) -> Found | None:
        """Return the entry at the path; None when it does not exist, or a file is above it."""
        with suppress(FileNotFoundError, NotADirectoryError), self._parent(path) as (folder, name):
            status = os.lstat(name, dir_fd=folder)
            if stat.S_ISLNK(status.st_mode):
                return _found("symlink", status, os.fsencode(os.readlink(name, dir_fd=folder)))
            if stat.S_ISDIR(status.st_mode):
                return _found("directory", status)
            if not stat.S_ISREG(status.st_mode):
                return _found(None, status)
            return _read_file(folder, name)
        return None

    def names(self, path: str) -> frozenset[str]:
        """Return the names in a directory; empty when it does not exist."""
        with (
            suppress(FileNotFoundError, NotADirectoryError),
            self._parent(path) as (folder, name),
            opened(os.open(name, _DIRECTORY_FLAGS, dir_fd=folder)) as descriptor,
        ):
            names = os.listdir(descriptor)  # noqa: PTH208 - a Path has no descriptors
            return frozenset(map(path_text, names))
        return frozenset()

    def identity(self, path: str) -> Identity | None:
        """Return a value that differs after every change of a path's entry; None: no entry."""
        with suppress(FileNotFoundError, NotADirectoryError), self._parent(path) as (folder, name):
            return _identity(os.lstat(name, dir_fd=folder))
        return None

    def create_file(self, path: str, content: bytes, mode: int, replaces: str | None) -> None:
        """Create a file in an existing directory.

        Args:
            path: The path; nothing is there.
            content: The bytes.
            mode: The permission bits.
            replaces: The name in the same directory of the file whose owner it gets, if there is
                one.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._parent(path) as (folder, name):
            descriptor = os.open(name, flags, 0o600, dir_fd=folder)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
                stream.flush()
                if replaces is not None:
                    _keep_owner(descriptor, folder, os_path(replaces))
                os.fchmod(descriptor, mode & PERMISSION_BITS)

    def create_link(self, path: str, target: bytes) -> None:
        """Create a symlink in an existing directory; the caller has checked its target."""
        with self._parent(path) as (folder, name):
            os.symlink(target, name, dir_fd=folder)

    def create_directory(self, path: str, mode: int) -> None:
        """Create a directory in an existing one."""
        with self._parent(path) as (folder, name):
            os.mkdir(name, mode & PERMISSION_BITS, dir_fd=folder)

    def move(self, name: str, path: str, expected: Identity | None) -> None:
        """Move the entry with a name in the path's directory to that path.

        Raises:
            ChangedMeanwhile: The entry at the path is not the expected one.
            FileNotFoundError: There is no entry with the name.
        """
        with self._parent(path) as (folder, target):
            os.lstat(name, dir_fd=folder)
            _require(folder, target, expected)
            os.replace(name, target, src_dir_fd=folder, dst_dir_fd=folder)

    def set_mode(self, path: str, mode: int, expected: Identity) -> None:
        """Change a file's permission bits.

        Raises:
            ChangedMeanwhile: The entry is not the expected one.
        """
        with (
            self._parent(path) as (folder, name),
            opened(os.open(name, READ_FLAGS, dir_fd=folder)) as descriptor,
        ):
            _require(folder, name, expected)
            os.fchmod(descriptor, mode & PERMISSION_BITS)

    def require_writable(self, path: str) -> None:
        """Require that the directory that a path is in can be written.

        Raises:
            PermissionError: It cannot.
        """
        with self._parent(path) as (folder, _):
            if not os.access(".", os.W_OK | os.X_OK, dir_fd=folder):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def remove(self, path: str, expected: Identity) -> None:
        """Remove a file or a link.

        Raises:
            ChangedMeanwhile: The entry is not the expected one.
            FileNotFoundError: There is none.
        """
        with self._parent(path) as (folder, name):
            os.lstat(name, dir_fd=folder)
            _require(folder, name, expected)
            os.unlink(name, dir_fd=folder)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        with self._parent(path) as (folder, name):
            os.rmdir(name, dir_fd=folder)

    def discard(self, path: str) -> None:
        """Remove an entry with everything below it, if there is one."""
        with suppress(FileNotFoundError, NotADirectoryError), self._parent(path) as (folder, name):
            if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                shutil.rmtree(name, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)

    def sync(self, path: str) -> None:
        """Wait until a file, or the names in a directory, are on the disk; empty: the folder's."""
        if not path:
            with opened(_descend(self._root, [])) as descriptor:
                os.fsync(descriptor)
            return
        with (
            self._parent(path) as (folder, name),
            opened(os.open(name, READ_FLAGS, dir_fd=folder)) as descriptor,
        ):
            os.fsync(descriptor)

    @contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        """Open the directory of a path's last name; yields its descriptor and the name."""
        check_path(path)
        *above, name = os_path(path).split("/")
        with opened(_descend(self._root, above)) as folder:
            yield folder, name


@contextmanager
def opened(descriptor: int) -> Iterator[int]:
    """Close a file descriptor at the end of a context; yields it."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_below(root: Path, path: str, flags: int = 0) -> int:
    """Open a file or directory below `root` for reading, through no symlink; the caller closes it.

    Unlike `RootedFolder` it opens Git's data too.

    Args:
        root: The folder.
        path: The path below it; the empty path is the folder itself.
        flags: Further flags of `os.open`.

    Raises:
        PathRefused: The path goes through a symlink.
        OSError: As `os.open` does; ELOOP when the last name is a symlink.
    """
    if not path:
        return _descend(root, [])
    *above, name = path.split("/")
    with opened(_descend(root, above)) as folder:
        return os.open(name, READ_FLAGS | flags, dir_fd=folder)


def _descend(root: Path, steps: list[str]) -> int:
    """Open the directory that the steps from `root` lead to."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for step in steps:
        with opened(folder):
            below = step_into(folder, step)
        folder = below
    return folder


def current_umask() -> int:
    """Return this process's umask; the usual one where the system does not report it.

    `os.umask` returns it only by changing it, for all threads.
    """
    with suppress(OSError, ValueError), Path("/proc/self/status").open(encoding="ascii") as status:
        return next(
            (int(line.split()[1], 8) for line in status if line.startswith("Umask:")), 0o022
        )
    return 0o022


def check_path(path: str) -> list[str]:
    """Return the names in a path text whose path stays inside its folder.

    Raises:
        PathRefused: The path is absolute, has `..` or an empty name, or names Git's data.
    """
    names = path.split("/")
    if path.startswith("/") or "\0" in path or {"", ".", ".."}.intersection(names):
        raise PathRefused("The path leaves the workspace.")
    if any(map(is_git_data, os_path(path).split("/"))):
        raise PathRefused("The path is in Git's own data, where files can become commands.")
    return names


def is_inside(path: str) -> bool:
    """Return whether a path stays inside its folder, and outside of Git's data."""
    try:
        return bool(check_path(path))
    except PathRefused:
        return False


def check_link(path: str, target: str) -> None:
    """Check that a symlink leads to a path inside its folder.

    `..` is allowed only at the start of the target: after a name, its meaning would depend on
    whether the name is a link.

    Args:
        path: The path of the symlink.
        target: Its target.

    Raises:
        PathRefused: The symlink leads out of the folder or into Git's data.
    """
    steps = target.split("/")
    ups = next((index for index, step in enumerate(steps) if step != ".."), len(steps))
    down = [step for step in steps[ups:] if step not in {"", "."}]
    if target.startswith("/") or ups > path.count("/") or ".." in down:
        raise PathRefused("The symlink points outside the workspace.")
    if any(is_git_data(step) for step in down):
        raise PathRefused("The symlink points into Git's own data.")


def step_into(folder: int, step: str) -> int:
    """Open a directory in a directory; the caller closes it.

    Raises:
        PathRefused: It is a symlink.
        OSError: As `os.open` does.
    """
    try:
        return os.open(step, _DIRECTORY_FLAGS, dir_fd=folder)
    except OSError as error:
        is_refusal = error.errno in {errno.ELOOP, errno.ENOTDIR}
        if is_refusal and stat.S_ISLNK(os.lstat(step, dir_fd=folder).st_mode):
            raise PathRefused("The path goes through a symlink.") from error
        raise


def _identity(status: os.stat_result) -> Identity:
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode)


def _require(folder: int, name: str, expected: Identity | None) -> None:
    try:
        identity = _identity(os.lstat(name, dir_fd=folder))
    except FileNotFoundError:
        identity = None
    if identity != expected:
        raise ChangedMeanwhile


def _keep_owner(descriptor: int, folder: int, name: str) -> None:
    """Set the owner of a replacement to that of the replaced file, if permitted."""
    with suppress(FileNotFoundError, PermissionError):
        status = os.lstat(name, dir_fd=folder)
        os.fchown(descriptor, status.st_uid, status.st_gid)


def _read_file(folder: int, name: str) -> Found:
    descriptor = os.open(name, READ_FLAGS, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        content = stream.read(MAX_HELD_BYTES + 1)
        if len(content) <= MAX_HELD_BYTES:
            return _found("file", status, content)
        digest = hashlib.sha256(content)
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return replace(_found("file", status), sha256=digest.hexdigest())


def _found(kind: FileKind | None, status: os.stat_result, content: bytes | None = None) -> Found:
    return Found(
        kind=kind,
        mode=status.st_mode & PERMISSION_BITS,
        sha256=None if content is None else hashlib.sha256(content).hexdigest(),
        content=content,
        identity=_identity(status),
    )
