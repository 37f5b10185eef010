"""Access to the files below one folder, such that no path and no symlink leads out of it.

Every step of a path is opened relative to the directory before it and never through a link, so a
link that is created between a check and its use has no effect.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from orchestrator.executable_config import is_git_data
from orchestrator.jobs.changes import FileKind

MAX_HELD_BYTES = 64 * 1024**2
"""A file up to this size, the largest in a change bundle, is read into memory; others are only
hashed."""

PERMISSION_BITS = 0o777
"""The bits of a mode that are copied: set-user-id and similar bits never are."""

_CHUNK_BYTES = 1024 * 1024
"""Read at once: large enough to be quick, small beside a process."""
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


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
    """Of a file's bytes or of a symlink's target; None for a directory."""
    content: bytes | None = None
    """None for a directory, and for a file over `MAX_HELD_BYTES`."""
    identity: tuple[int, ...] = ()
    """Differs after every change of the file."""


class Folder(Protocol):
    """The folder that is merged into; paths are relative to it.

    `RootedFolder` documents the arguments and exceptions of each method.
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
    does. Where a method takes `instead_of`, it is the entry that `find` returned for the path.

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
            return frozenset(os.listdir(descriptor))  # noqa: PTH208 - a Path has no descriptors
        return frozenset()

    def put_file(self, path: str, content: bytes, mode: int, instead_of: Found | None) -> None:
        """Write a whole file atomically, and create the directories above it.

        Raises:
            ChangedMeanwhile: The entry is no longer `instead_of`.
        """
        with self._parent(path, create=True) as (folder, name), _aside(folder) as partial:
            descriptor = os.open(
                partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder
            )
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
                stream.flush()
                _keep_owner(descriptor, folder, name)
                os.fchmod(descriptor, mode & PERMISSION_BITS)
            _replace(folder, partial, name, instead_of)

    def put_link(self, path: str, target: bytes, instead_of: Found | None) -> None:
        """Write a symlink atomically, and create the directories above it.

        Raises:
            PathRefused: The target is outside the folder or in Git's data.
            ChangedMeanwhile: The entry is no longer `instead_of`.
        """
        check_link(path, os.fsdecode(target))
        with self._parent(path, create=True) as (folder, name), _aside(folder) as partial:
            os.symlink(target, partial, dir_fd=folder)
            _replace(folder, partial, name, instead_of)

    def put_directory(self, path: str, mode: int) -> None:
        """Create a directory, and those above it; an existing one does not change."""
        with self._parent(path, create=True) as (folder, name), suppress(FileExistsError):
            os.mkdir(name, mode & PERMISSION_BITS, dir_fd=folder)

    def set_mode(self, path: str, mode: int, instead_of: Found) -> None:
        """Change a file's permission bits.

        Raises:
            ChangedMeanwhile: The entry is no longer `instead_of`.
        """
        with (
            self._parent(path) as (folder, name),
            opened(os.open(name, _READ_FLAGS, dir_fd=folder)) as descriptor,
        ):
            _require_unchanged(folder, name, instead_of)
            os.fchmod(descriptor, mode & PERMISSION_BITS)

    def remove(self, path: str, instead_of: Found) -> None:
        """Remove a file or a link.

        Raises:
            ChangedMeanwhile: The entry is no longer `instead_of`.
        """
        with self._parent(path) as (folder, name):
            _require_unchanged(folder, name, instead_of)
            os.unlink(name, dir_fd=folder)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        with self._parent(path) as (folder, name):
            os.rmdir(name, dir_fd=folder)

    @contextmanager
    def _parent(self, path: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
        """Open the directory of a path's last name; yields its descriptor and the name."""
        *above, name = check_path(path)
        with opened(_descend(self._root, above, create=create)) as folder:
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
        return os.open(name, _READ_FLAGS | flags, dir_fd=folder)


def _descend(root: Path, steps: list[str], *, create: bool = False) -> int:
    """Open the directory that the steps from `root` lead to."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for step in steps:
        with opened(folder):
            if create:
                with suppress(FileExistsError):
                    os.mkdir(step, 0o755, dir_fd=folder)
            below = _step_into(folder, step)
        folder = below
    return folder


def current_umask() -> int:
    """Return this process's umask; the usual one where the system does not tell.

    `os.umask` tells it only by changing it, for all threads.
    """
    with suppress(OSError, ValueError), Path("/proc/self/status").open(encoding="ascii") as status:
        return next(
            (int(line.split()[1], 8) for line in status if line.startswith("Umask:")), 0o022
        )
    return 0o022


def check_path(path: str) -> list[str]:
    """Return the names in a path that stays inside its folder.

    Raises:
        PathRefused: The path is absolute, has `..` or an empty name, or names Git's data.
    """
    names = path.split("/")
    if path.startswith("/") or "\0" in path or {"", ".", ".."}.intersection(names):
        raise PathRefused("The path leaves the workspace.")
    if any(is_git_data(name) for name in names):
        raise PathRefused("The path is in Git's own data, where files can become commands.")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise PathRefused("The path cannot be a file name on this system.") from error
    return names


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


def _step_into(folder: int, step: str) -> int:
    try:
        return os.open(step, _DIRECTORY_FLAGS, dir_fd=folder)
    except OSError as error:
        is_refusal = error.errno in {errno.ELOOP, errno.ENOTDIR}
        if is_refusal and stat.S_ISLNK(os.lstat(step, dir_fd=folder).st_mode):
            raise PathRefused("The path goes through a symlink.") from error
        raise


@contextmanager
def _aside(folder: int) -> Iterator[str]:
    """Yield a name for a partial file, which is removed afterwards unless it was renamed."""
    name = f".fanout-{secrets.token_hex(8)}.partial"
    try:
        yield name
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode)


def _require_unchanged(folder: int, name: str, instead_of: Found | None) -> None:
    try:
        identity = _identity(os.lstat(name, dir_fd=folder))
    except FileNotFoundError:
        identity = None
    if identity != (instead_of.identity if instead_of is not None else None):
        raise ChangedMeanwhile


def _replace(folder: int, partial: str, name: str, instead_of: Found | None) -> None:
    _require_unchanged(folder, name, instead_of)
    os.replace(partial, name, src_dir_fd=folder, dst_dir_fd=folder)


def _keep_owner(descriptor: int, folder: int, name: str) -> None:
    """Set the owner of a replacement to that of the replaced file, if permitted."""
    with suppress(FileNotFoundError, PermissionError):
        status = os.lstat(name, dir_fd=folder)
        os.fchown(descriptor, status.st_uid, status.st_gid)


def _read_file(folder: int, name: str) -> Found:
    descriptor = os.open(name, _READ_FLAGS, dir_fd=folder)
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
