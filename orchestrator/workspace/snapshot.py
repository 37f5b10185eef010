"""The files of a snapshot and its archive.

The archive is an uncompressed tar of regular files, directories and symlinks, sorted, without
owners and with the same time for all, so that equal trees give equal bytes. Credentials in Git's
own files are left out.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from orchestrator.jobs.changes import SkippedFile
from orchestrator.process_secrets import inherited_environment
from orchestrator.workspace.git_credentials import may_hold_credentials, without_credentials
from orchestrator.workspace.rooted import PERMISSION_BITS, PathRefused, open_below, opened

BY_PRODUCTS = frozenset(
    {"__pycache__", ".venv", "node_modules", ".pytest_cache", ".mypy_cache", ".ruff_cache"},
)
"""Left out of folders without a Git repository, which would say what to ignore, as are `*.pyc`
files."""

ARCHIVE_MTIME = 315_619_200
"""1980-01-02, the time of every file in a snapshot; zip archives have no earlier day."""

_HELD_BYTES = 8 * 1024**2
"""A file up to this size is read at once; a larger one is copied to a temporary file first, because
it may be growing."""

_COPY_BYTES = 1024**2
"""Copied at once: large enough to be quick, small beside a process."""

_CLOCK_TICK_SECONDS = 0.02
"""How coarse the file times of a local disk are: two ticks of a 100 Hz kernel."""

LeftOut = Callable[[str, str], bool]
"""Takes a path and its last name; returns whether the snapshot leaves it out."""


class TooLarge(Exception):
    """The files have more bytes than the limit."""


class IgnoreRulesUnreadable(Exception):
    """Git could not list the files that it ignores, so that a snapshot might contain secrets."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A path with the result of `lstat`: an equal entry later means an unchanged file."""

    path: str
    mode: int
    size: int = 0
    stamp: tuple[int, int, int] = (0, 0, 0)
    """Inode, modification and change time; zeros for a directory, which is compared by entries."""


@dataclass(frozen=True)
class Tree:
    """The contents of a folder at one time, sorted by path."""

    entries: tuple[Entry, ...]
    skipped: tuple[SkippedFile, ...]

    @property
    def size_bytes(self) -> int:
        """The sum of all file sizes."""
        return sum(entry.size for entry in self.entries)


@dataclass
class _Walk:
    root: Path
    left_out: LeftOut
    entries: list[Entry] = field(default_factory=list)
    skipped: list[SkippedFile] = field(default_factory=list)
    pending: list[str] = field(default_factory=lambda: [""])

    def run(self) -> Tree:
        while self.pending:
            directory = self.pending.pop()
            try:
                self._list(directory)
            except (FileNotFoundError, PathRefused):
                continue  # it was removed, or became a link, since it was listed
            except OSError as error:
                self.skipped.append(_skipped(directory or ".", error))
        return Tree(
            tuple(sorted(self.entries, key=lambda entry: entry.path)),
            tuple(sorted(self.skipped, key=lambda file: file.path)),
        )

    def _list(self, directory: str) -> None:
        with (
            opened(open_below(self.root, directory, os.O_DIRECTORY)) as descriptor,
            os.scandir(descriptor) as listing,
        ):
            for item in listing:
                path = f"{directory}/{item.name}" if directory else item.name
                if not self.left_out(path, item.name):
                    with suppress(FileNotFoundError):  # removed since it was listed
                        self._add(path, item.stat(follow_symlinks=False))

    def _add(self, path: str, status: os.stat_result) -> None:
        if stat.S_ISDIR(status.st_mode):
            self.entries.append(Entry(path, status.st_mode))
            self.pending.append(path)
        elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            stamp = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
            self.entries.append(Entry(path, status.st_mode, status.st_size, stamp))
        else:
            self.skipped.append(
                SkippedFile(path=printable(path), reason="It is not a file, directory or symlink.")
            )


def scan(root: Path) -> Tree:
    """List the files that a snapshot of a folder has.

    Of a Git repository, these are the files that Git tracks or would track, empty directories, and
    `.git` itself; of another folder, all but `BY_PRODUCTS`. Links are never followed.

    Args:
        root: The folder.

    Raises:
        IgnoreRulesUnreadable: Git is missing or failed.
        OSError: The folder cannot be read.
    """
    return _Walk(root, _ignored_by_git(root) if (root / ".git").exists() else _is_by_product).run()


def write(root: Path, tree: Tree, sink: IO[bytes], *, max_bytes: int) -> tuple[SkippedFile, ...]:
    """Write the archive of a scanned tree, and return the files that could not be read.

    Args:
        root: The folder.
        tree: What `scan` returned for it.
        sink: The stream to write to.
        max_bytes: The maximum sum of file sizes.

    Raises:
        TooLarge: The files have grown over `max_bytes`.
    """
    _let_the_clock_tick(tree)
    unreadable: list[SkippedFile] = []
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.copybufsize = _COPY_BYTES  # type: ignore[attr-defined] # the stubs lack it
        room = max_bytes
        for entry in tree.entries:
            try:
                room -= _add(archive, root, entry, room)
            except (OSError, PathRefused) as error:
                unreadable.append(_skipped(entry.path, error))
    return tuple(unreadable)


def _let_the_clock_tick(tree: Tree) -> None:
    """Wait until a change of any file would change its times.

    A file that changed within the tick of its last time, after it was read, would look unchanged.
    """
    newest = max((entry.stamp[2] for entry in tree.entries), default=0) / 1e9
    age = time.time() - newest
    if age < _CLOCK_TICK_SECONDS:
        time.sleep(min(_CLOCK_TICK_SECONDS - age, _CLOCK_TICK_SECONDS))


def _add(archive: tarfile.TarFile, root: Path, entry: Entry, room: int) -> int:
    """Add one entry, and return its size in bytes."""
    info = tarfile.TarInfo(entry.path)
    info.mode = entry.mode & PERMISSION_BITS
    info.mtime = ARCHIVE_MTIME
    if stat.S_ISDIR(entry.mode):
        info.type = tarfile.DIRTYPE
        archive.addfile(info)
    elif stat.S_ISLNK(entry.mode):
        info.type = tarfile.SYMTYPE
        info.linkname = _read_link(root, entry.path)
        archive.addfile(info)
    else:
        _add_file(archive, info, root, room)
    return info.size


def _add_file(archive: tarfile.TarFile, info: tarfile.TarInfo, root: Path, room: int) -> None:
    with os.fdopen(open_below(root, info.name), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "It is no longer a file")
        head = stream.read(_HELD_BYTES + 1)
        if may_hold_credentials(info.name):
            if len(head) > _HELD_BYTES:
                raise OSError(
                    errno.EFBIG, "It may contain credentials and is too large to remove them"
                )
            head = without_credentials(head)
        if len(head) <= _HELD_BYTES:
            _add_bytes(archive, info, io.BytesIO(head), len(head), room)
            return
        with tempfile.TemporaryFile(prefix="fanout-snapshot-") as copy:
            size = copy.write(head)
            while size <= room and (chunk := stream.read(_COPY_BYTES)):
                size += copy.write(chunk)
            copy.seek(0)
            _add_bytes(archive, info, copy, size, room)


def _add_bytes(
    archive: tarfile.TarFile, info: tarfile.TarInfo, content: IO[bytes], size: int, room: int
) -> None:
    if size > room:
        raise TooLarge
    info.size = size
    archive.addfile(info, content)


def _read_link(root: Path, path: str) -> str:
    directory, _, name = path.rpartition("/")
    with opened(open_below(root, directory, os.O_DIRECTORY)) as descriptor:
        return os.readlink(name, dir_fd=descriptor)


def _is_by_product(_path: str, name: str) -> bool:
    return name in BY_PRODUCTS or name.endswith(".pyc")


def _ignored_by_git(root: Path) -> LeftOut:
    """Leave out the files that Git ignores, and the locks of running Git commands.

    The list of ignored paths, rather than that of all others, keeps empty directories and nested
    repositories.
    """
    ignored = _ignored_paths(root)

    def left_out(path: str, name: str) -> bool:
        return path in ignored or (name.endswith(".lock") and ".git" in path.split("/"))

    return left_out


def _ignored_paths(root: Path) -> frozenset[str]:
    settings = ("safe.directory=*", "core.fsmonitor=false", f"core.hooksPath={os.devnull}")
    options = [part for setting in settings for part in ("-c", setting)]
    listing = ["ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory"]
    environment = inherited_environment()
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command
            ["git", *options, "--work-tree=.", *listing],  # noqa: S607 - git is found on PATH
            cwd=root,
            env=environment | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
            capture_output=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise IgnoreRulesUnreadable("git is not installed") from error
    if done.returncode:
        raise IgnoreRulesUnreadable(os.fsdecode(done.stderr).strip().partition("\n")[0])
    return frozenset(os.fsdecode(path).rstrip("/") for path in done.stdout.split(b"\0") if path)


def _skipped(path: str, error: Exception) -> SkippedFile:
    reason = (isinstance(error, OSError) and error.strerror) or str(error)
    return SkippedFile(path=printable(path), reason=f"It could not be read: {reason}.")


def printable(path: str) -> str:
    """Return a path as valid Unicode: bytes that are not UTF-8 are replaced."""
    return os.fsencode(path).decode("utf-8", "replace")
