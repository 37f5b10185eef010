"""The resident's file operations. Runs inside the sandbox: see `resident`."""

# This file works with descriptors and DirEntry, and importing pathlib would cost every start 5 ms:
# ruff: noqa: PTH103, PTH105, PTH106, PTH108, PTH116, PTH118, PTH119, PTH120

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from contextlib import suppress

from fanout.orchestrator.portable.text_search import (
    MAX_NAMED_FILES,
    find_lines,
    is_binary,
    read_lines,
)

from . import frames

TYPE_CHECKING = False  # typing.TYPE_CHECKING without the import, which every start would pay for
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .loop import Operation, Reply

MAX_ANSWER_BYTES = 8 << 20
"""The size at which a walk or a grep stops, whatever its budget."""
MAX_FOLDERS = 256
"""The most folders of a path below the root of a walk: deeper trees were not made by a person, and
a path of the kernel has 4,096 bytes. The change scan has the same limit."""
TEMPORARY_PREFIX = ".fanout-"
"""The beginning of the name of an incomplete file in the folder of its later path."""


class Upload:
    """An incomplete file in the folder of its later path.

    It is written through its descriptor only: a job may put a link at its path, and the resident
    may open what no process of the job may, such as the resident's own stream in /proc/self.
    """

    def __init__(self, directory: str, data: bytes) -> None:
        os.makedirs(directory, exist_ok=True)
        self.path = os.path.join(directory, f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}~")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        self.descriptor = os.open(self.path, flags, 0o600)
        self._changed = threading.Condition()
        self._size, self._is_removed = 0, False
        try:
            self.append(data)
        except OSError:
            self.remove()
            raise

    def append(self, data: bytes) -> None:
        """Write a part to its end, unless it is removed."""
        with self._changed:
            if self._is_removed:
                return
            write_all(self.descriptor, data)
            self._size += len(data)
            self._changed.notify_all()

    def wait_for(self, size: int) -> bool:
        """Wait until so many bytes have arrived; return False if it is removed before."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_removed or self._size >= size)
            return not self._is_removed

    def remove(self) -> None:
        """Remove it, unless it was moved to its later path."""
        with self._changed:  # its number is another file's as soon as it is closed
            os.close(self.descriptor)
            self._is_removed = True
            self._changed.notify_all()
        remove_quietly(self.path)


_uploads: dict[str, Upload] = {}


def take_upload(arguments: dict[str, Any]) -> Upload | None:
    """Return the upload that `arguments["upload"]` names; the caller must remove it."""
    name = arguments.get("upload")
    return None if name is None else _uploads.pop(name)


def begun_upload(name: str) -> Upload:
    """Return an upload to which parts may still be added; `drop_upload` removes it."""
    return _uploads[name]


def drop_upload(name: str) -> None:
    """Remove an upload, if there is one; its later parts are ignored."""
    if upload := _uploads.pop(name, None):
        upload.remove()


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything to a blocking descriptor."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def remove_quietly(path: str) -> None:
    """Remove a file if it still exists."""
    with suppress(OSError):
        os.unlink(path)


def _upload(arguments: dict[str, Any], payload: bytes) -> Reply:
    """Begin the upload `id` in `directory`; without one, append to it; with `abort`, remove it."""
    name = str(arguments["id"])
    if arguments.get("abort"):
        drop_upload(name)
    elif upload := _uploads.get(name):
        upload.append(payload)
    elif "directory" in arguments:
        _uploads[name] = Upload(arguments["directory"], payload)
    return {}, b""


def _read(arguments: dict[str, Any], _payload: bytes) -> Reply:
    """Read at most `max_bytes` (and one chunk) from `offset`."""
    path = arguments["path"]
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a FIFO must not block
    try:
        kind = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(kind):
            raise OSError(errno.EISDIR if stat.S_ISDIR(kind) else errno.EINVAL, "not a file", path)
        wanted = min(arguments["max_bytes"], frames.CHUNK_BYTES)
        offset, parts = arguments["offset"], []
        while wanted > 0:
            part = os.pread(descriptor, wanted, offset)
            if not part:
                break
            parts.append(part)
            wanted, offset = wanted - len(part), offset + len(part)
        return {}, b"".join(parts)
    finally:
        os.close(descriptor)


def _write(arguments: dict[str, Any], payload: bytes) -> Reply:
    path, staged = arguments["path"], take_upload(arguments)
    try:
        create_only = bool(arguments.get("create_only"))
        target = path if create_only else os.path.realpath(path)
        if not os.path.basename(path):
            raise IsADirectoryError(errno.EISDIR, "not a file name", path)
        if create_only and os.path.lexists(path):  # also where nothing could be written anyway
            raise FileExistsError(errno.EEXIST, "exists", path)
        mode = _new_mode(target, arguments.get("mode"))
        if staged is None:
            staged = Upload(os.path.dirname(target), payload)
        os.fchmod(staged.descriptor, mode)
        if create_only:
            os.link(staged.path, target, follow_symlinks=False)
        else:
            os.replace(staged.path, target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        if staged is not None:
            staged.remove()
    return {}, b""


def _new_mode(target: str, asked: int | None) -> int:
    """Return the new mode of the file at `target`; PermissionError when it is not writable."""
    try:
        existing = os.stat(target).st_mode
    except FileNotFoundError:
        return 0o644 if asked is None else asked
    if stat.S_ISREG(existing) and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "not writable", target)
    return stat.S_IMODE(existing) if asked is None else asked


def _delete(arguments: dict[str, Any], _payload: bytes) -> Reply:
    path = arguments["path"]
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return {}, b""
    directories = [path]
    for directory in directories:  # grows while it is walked; children come after their parents
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.path)
                else:
                    os.unlink(entry.path)
    for directory in reversed(directories):
        os.rmdir(directory)
    return {}, b""


def entry_record(path: str, status: os.stat_result) -> bytes:
    """Return a path as a record `kind size modified mode path`; NUL joins records."""
    mode = status.st_mode
    kinds = ((stat.S_ISREG, b"f"), (stat.S_ISDIR, b"d"), (stat.S_ISLNK, b"l"))
    kind = next((letter for matches, letter in kinds if matches(mode)), b"o")
    return b"%s %d %.6f %o %s" % (
        kind,
        status.st_size,
        status.st_mtime,
        stat.S_IMODE(mode),
        os.fsencode(path),
    )


def _stat(arguments: dict[str, Any], _payload: bytes) -> Reply:
    return {}, entry_record(arguments["path"], os.lstat(arguments["path"]))


def _list(arguments: dict[str, Any], _payload: bytes) -> Reply:
    path, size, records = arguments["path"], 0, []
    with os.scandir(path) as entries:
        for entry in entries:
            try:
                record = entry_record(entry.path, entry.stat(follow_symlinks=False))
            except FileNotFoundError:
                continue  # deleted since it was listed
            records.append((entry.name, record))
            size += len(record) + 1
            if size > MAX_ANSWER_BYTES:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    return {}, b"\0".join(record for _name, record in sorted(records))


class _FilesBelow:
    """All files below a directory, without `.git` directories."""

    def __init__(self, root: str, deadline: float) -> None:
        self._root, self._deadline = root, deadline
        self.complete = True
        """Whether nothing was left out, because of the deadline or `MAX_FOLDERS`, so far."""

    def __iter__(self) -> Iterator[os.DirEntry[str]]:
        waiting = [(self._root, 0)]
        while waiting and time.monotonic() <= self._deadline:
            directory, depth = waiting.pop()
            below = []
            for entry in self._names(directory):
                if time.monotonic() > self._deadline:
                    break
                if not entry.is_dir(follow_symlinks=False):
                    yield entry
                elif entry.name != ".git" and depth < MAX_FOLDERS:
                    below.append((entry.path, depth + 1))
                elif entry.name != ".git":
                    self.complete = False
            waiting += reversed(below)
        self.complete = self.complete and time.monotonic() <= self._deadline

    def _names(self, directory: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(directory) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            if directory == self._root:
                raise
            # else it is unreadable, or was deleted meanwhile
            self.complete = self.complete and error.errno != errno.ENAMETOOLONG
            return []


def _walk(arguments: dict[str, Any], _payload: bytes) -> Reply:
    records: list[bytes] = []
    size = 0
    found = _FilesBelow(arguments["path"], time.monotonic() + arguments["timeout_seconds"])
    for entry in found:
        if len(records) >= arguments["max_entries"] or size > MAX_ANSWER_BYTES:
            found.complete = False
            break
        try:
            records.append(entry_record(entry.path, entry.stat(follow_symlinks=False)))
        except FileNotFoundError:
            continue  # deleted since it was listed
        size += len(records[-1])
    return {"complete": found.complete}, b"\0".join(records)


class _Grep:
    """One search: its text, its hits, and the rest of its budget."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.text = arguments["text"].encode("utf-8", "surrogateescape")
        self.max_hits = arguments["max_hits"]
        self.deadline = time.monotonic() + arguments["timeout_seconds"]
        self.hits: list[list[Any]] = []
        self.complete = b"\n" not in self.text  # no line holds a line break: nothing to look for
        self.unsearched: list[str] = []
        """The first files that were not searched."""
        self.unsearched_count = 0
        self._overlap = len(self.text) - 1
        self._bytes = 0

    def leave_out(self, path: str) -> None:
        """Count a file that is not searched."""
        self.unsearched_count += 1
        if len(self.unsearched) < MAX_NAMED_FILES:
            self.unsearched.append(path)

    def paths(self, path: str, only: list[str] | None) -> Iterator[str]:
        if only is not None:
            yield from only
        elif not stat.S_ISDIR(os.stat(path).st_mode):
            yield path
        else:
            found = _FilesBelow(path, self.deadline)
            for entry in found:
                if not entry.is_symlink():
                    yield entry.path
            self.complete = self.complete and found.complete

    def file(self, path: str) -> None:
        """Collect one file's hits."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return
            blocks = read_lines(file, frames.CHUNK_BYTES, self._overlap)
            for number, line in find_lines(self._watched(path, blocks), self.text):
                self._hit(path, number, line)
                if not self.complete:
                    return

    def _watched(self, path: str, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the blocks of a file, up to the deadline."""
        is_first = True
        for block in blocks:
            if is_first and is_binary(block):
                self.leave_out(path)
                return
            if time.monotonic() > self.deadline:
                self.complete = False
                self.leave_out(path)
                return
            is_first = False
            yield block

    def _hit(self, path: str, number: int, line: str) -> None:
        if (
            len(self.hits) >= self.max_hits
            or self._bytes > MAX_ANSWER_BYTES
            or time.monotonic() > self.deadline
        ):
            self.complete = False
            return
        if self.hits and self.hits[-1][:2] == [path, number]:
            return  # in another part of a split line
        self.hits.append([path, number, line])
        self._bytes += len(line.encode()) + len(path)


def _grep(arguments: dict[str, Any], _payload: bytes) -> Reply:
    search = _Grep(arguments)
    if not search.complete:
        return {"complete": True, "unsearched": 0}, frames.encode({"hits": [], "unsearched": []})
    for path in search.paths(arguments["path"], arguments.get("only")):
        if time.monotonic() > search.deadline:
            search.complete = False
        if not search.complete:
            break
        try:
            search.file(path)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EIO):
                search.leave_out(path)  # else it was deleted meanwhile, or is a device
    found = {"hits": search.hits, "unsearched": search.unsearched}
    return {"complete": search.complete, "unsearched": search.unsearched_count}, frames.encode(
        found
    )


OPERATIONS: dict[str, Operation] = {
    "upload": _upload,
    "read": _read,
    "write": _write,
    "stat": _stat,
    "list": _list,
}
SLOW_OPERATIONS: dict[str, Operation] = {"delete": _delete, "walk": _walk, "grep": _grep}


def forget_uploads() -> None:
    """Remove uploads that were not used."""
    for upload in _uploads.values():
        upload.remove()
