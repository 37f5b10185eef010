"""Reading and changing the files below one folder, such that no path and no symlink leads out of it.

Every step of a path is opened relative to the directory before it and never through a link, so a
link that appears between a check and its use changes nothing.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.jobs.changes import FileKind

MAX_HELD_BYTES = 64 * 1024**2
"""A file up to this size is read into memory, the largest that a change bundle carries; others are
hashed."""

PERMISSION_BITS = 0o777
"""What a mode means here: set-user-id and its like never travel."""

_CHUNK_BYTES = 1024 * 1024
"""Read at once: large enough to be quick, small beside a process."""
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_IGNORED_BY_HFS = dict.fromkeys(
    [*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF],
)
"""Code points that a Mac's file system drops from names, so that `.g\\u200cit` is `.git` there."""


class PathRefused(ValueError):
    """The path leaves the folder, goes through a symlink, or names Git's own data."""


class ChangedMeanwhile(Exception):
    """Somebody else changed the file between its reading and its writing."""

    def __str__(self) -> str:
        return "The file kept changing while it was written."


@dataclass(frozen=True, kw_only=True)
class Found:
    """What stands at a path. Equal content has equal `kind` and `sha256`."""

    kind: FileKind | None
    """None for a special file."""
    mode: int
    sha256: str | None = None
    """Of a file's bytes or of a symlink's target; None for a directory."""
    content: bytes | None = None
    """None for a directory, and for a file over `MAX_HELD_BYTES`."""
    identity: tuple[int, ...] = ()
    """Changes when the file does."""


class RootedFolder:
    """The files below `root`; paths are relative, with `/`.

    Every method raises `PathRefused` for a path that leads elsewhere, and OSError as `os` does.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def find(self, path: str) -> Found | None:
        """What stands at the path; None when nothing does, or a file stands above it."""
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
        """The names in a directory; empty when there is none."""
        with suppress(FileNotFoundError, NotADirectoryError), self._parent(path) as (folder, name):
            descriptor = os.open(name, _DIRECTORY_FLAGS, dir_fd=folder)
            try:
                return frozenset(os.listdir(descriptor))  # noqa: PTH208 - a Path has no descriptors
            finally:
                os.close(descriptor)
        return frozenset()

    def put_file(self, path: str, content: bytes, mode: int, instead_of: Found | None) -> None:
        """Put a whole file in place atomically; directories above it are made.

        Raises:
            ChangedMeanwhile: what stands there is no longer `instead_of`.
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
            _require_unchanged(folder, name, instead_of)
            os.replace(partial, name, src_dir_fd=folder, dst_dir_fd=folder)

    def put_link(self, path: str, target: bytes, instead_of: Found | None) -> None:
        """Put a symlink in place atomically.

        Raises:
            PathRefused: the target is outside the folder or in Git's data.
            ChangedMeanwhile: what stands there is no longer `instead_of`.
        """
        check_link(path, os.fsdecode(target))
        with self._parent(path, create=True) as (folder, name), _aside(folder) as partial:
            os.symlink(target, partial, dir_fd=folder)
            _require_unchanged(folder, name, instead_of)
            os.replace(partial, name, src_dir_fd=folder, dst_dir_fd=folder)

    def put_directory(self, path: str, mode: int) -> None:
        """Make a directory, and those above it; one that is there only gets the mode."""
        with self._parent(path, create=True) as (folder, name):
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder)
            descriptor = os.open(name, _DIRECTORY_FLAGS, dir_fd=folder)
            try:
                os.fchmod(descriptor, mode & PERMISSION_BITS)
            finally:
                os.close(descriptor)

    def set_mode(self, path: str, mode: int, instead_of: Found) -> None:
        """Change a file's permission bits.

        Raises:
            ChangedMeanwhile: what stands there is no longer `instead_of`.
        """
        with self._parent(path) as (folder, name):
            descriptor = os.open(name, _READ_FLAGS, dir_fd=folder)
            try:
                _require_unchanged(folder, name, instead_of)
                os.fchmod(descriptor, mode & PERMISSION_BITS)
            finally:
                os.close(descriptor)

    def remove(self, path: str, instead_of: Found) -> None:
        """Remove a file or a link.

        Raises:
            ChangedMeanwhile: what stands there is no longer `instead_of`.
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
        """The open directory that a path's last name is in, and that name."""
        *above, name = check_path(path)
        folder = _descend(self._root, above, create=create)
        try:
            yield folder, name
        finally:
            os.close(folder)


def open_below(root: Path, path: str, flags: int = 0) -> int:
    """Open a file or directory below `root` for reading, through no symlink; the caller closes it.

    The empty path is the root itself. Unlike `RootedFolder` it reads Git's data too.

    Raises:
        PathRefused: the path goes through a symlink.
        OSError: as `os.open` does; ELOOP when the last name is a symlink.
    """
    if not path:
        return _descend(root, [])
    *above, name = path.split("/")
    folder = _descend(root, above)
    try:
        return os.open(name, _READ_FLAGS | flags, dir_fd=folder)
    finally:
        os.close(folder)


def _descend(root: Path, steps: list[str], *, create: bool = False) -> int:
    """Open the directory that the steps lead to."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for step in steps:
        try:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(step, dir_fd=folder)
            below = _step_into(folder, step)
        finally:
            os.close(folder)
        folder = below
    return folder


def check_path(path: str) -> list[str]:
    """The names in a path that stays inside its folder.

    Raises:
        PathRefused: it is absolute, has `..` or an empty name, or names Git's data.
    """
    names = path.split("/")
    if path.startswith("/") or "\0" in path or {"", ".", ".."}.intersection(names):
        raise PathRefused("The path leaves the workspace.")
    if any(_is_git_data(name) for name in names):
        raise PathRefused("The path is in Git's own data, where files can become commands.")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise PathRefused("The path cannot be a file name on this system.") from error
    return names


def check_link(path: str, target: str) -> None:
    """Check that a symlink at `path` stays inside, wherever links on its way lead.

    A `..` may only stand at the start of the target: behind a name it would depend on what that
    name is.

    Raises:
        PathRefused: it does not.
    """
    steps = target.split("/")
    ups = next((index for index, step in enumerate(steps) if step != ".."), len(steps))
    down = [step for step in steps[ups:] if step not in {"", "."}]
    if target.startswith("/") or ups > path.count("/") or ".." in down:
        raise PathRefused("The symlink points outside the workspace.")
    if any(_is_git_data(step) for step in down):
        raise PathRefused("The symlink points into Git's own data.")


def _is_git_data(name: str) -> bool:
    """Whether some file system takes the name for `.git`."""
    plain = name.translate(_IGNORED_BY_HFS).casefold().partition(":")[0].rstrip(" .")
    return plain in {".git", "git~1"}


def _step_into(folder: int, step: str) -> int:
    try:
        return os.open(step, _DIRECTORY_FLAGS, dir_fd=folder)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR} and _is_link(folder, step):
            raise PathRefused("The path goes through a symlink.") from error
        raise


def _is_link(folder: int, name: str) -> bool:
    return stat.S_ISLNK(os.lstat(name, dir_fd=folder).st_mode)


@contextmanager
def _aside(folder: int) -> Iterator[str]:
    """A name for a half-written file, gone afterwards unless it was renamed."""
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


def _keep_owner(descriptor: int, folder: int, name: str) -> None:
    """Give a replacement the owner of what it replaces, where we may."""
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
    return Found(
        kind="file",
        mode=status.st_mode & PERMISSION_BITS,
        sha256=digest.hexdigest(),
        identity=_identity(status),
    )


def _found(kind: FileKind | None, status: os.stat_result, content: bytes | None = None) -> Found:
    return Found(
        kind=kind,
        mode=status.st_mode & PERMISSION_BITS,
        sha256=None if content is None else hashlib.sha256(content).hexdigest(),
        content=content,
        identity=_identity(status),
    )
