"""What a snapshot has of each file: the files of a scanned tree are read here, and nowhere else.

A file with a credential is left out, and some files of a repository's own data are rewritten
(`repositories/git_data.py`). The files of the work tree are read first, because the repositories'
indexes depend on which of them are left out.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, NamedTuple

from ...jobs.changes import FileKind, SkippedFile
from ...path_text import path_text
from ..repositories.configuration import RepositoryUnreadable
from ..repositories.git_data import (
    carried_content,
    carried_link,
    is_rewritten,
    object_id,
)
from ..repositories.repository import index_without
from ..rooted import (
    PERMISSION_BITS,
    READ_FLAGS,
    PathRefused,
)
from ..secret_files import SLICE_BYTES, may_be_secret, secret_content
from .scan import OpenFolders, ScannedEntry, Tree, unreadable

_HELD_BYTES = 8 * 1024**2
"""A file up to this size is read at once; a larger one is copied to a temporary file first, because
it may be growing. Credentials are searched in this many bytes of a file."""

_COPY_BYTES = 1024**2
"""The bytes copied at once: enough to be quick, and little memory for a process."""

_CLOCK_TICK_SECONDS = 0.02
"""The precision of file times of a local disk: two ticks of a 100 Hz kernel."""


class TooLarge(Exception):
    """The files have more bytes than the limit."""


@dataclass
class Omitted:
    """The parts of a scanned tree that are not in its snapshot."""

    unreadable: list[SkippedFile] = field(default_factory=list)
    left_at_home: list[SkippedFile] = field(default_factory=list)
    """Files that contain a credential."""


@dataclass
class Progress:
    """How far the reading of a tree has come; other threads read it."""

    done_bytes: int = 0
    total_bytes: int = 0


class Member(NamedTuple):
    """One file, directory or symlink of a snapshot."""

    path: str
    kind: FileKind
    mode: int
    size: int
    """The size of the content; 0 for a directory."""
    content: IO[bytes]
    """The content; that of a symlink is its target."""


class _Read(NamedTuple):
    """The data read from an entry."""

    entry: ScannedEntry
    kind: FileKind
    content: bytes | IO[bytes]
    size: int
    is_searched: bool = False
    """Whether credentials are searched in the content, which is bytes then."""


@dataclass
class Contents:
    """The contents of a scanned tree.

    Args:
        root: The folder.
        tree: What `scan` returned for it.
        room: The maximum sum of the sizes of the files that are read.
        take: Called with each member.
        known: Path -> the entry when its file was read before; an unchanged one is not read again.
        progress: Is kept up to date.
    """

    root: Path
    tree: Tree
    room: int
    take: Callable[[Member], None]
    known: Mapping[str, ScannedEntry] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    omitted: Omitted = field(default_factory=Omitted)
    unread: list[str] = field(default_factory=list)
    """The files that were not read because they are known."""
    indexes: dict[str, bytes] = field(default_factory=dict)
    """Path -> content of the indexes of repositories of which files are left out."""
    _forgotten: defaultdict[str, frozenset[str]] = field(
        default_factory=lambda: defaultdict(frozenset)
    )
    """A repository's data -> the ids of its objects that are left out."""

    def __post_init__(self) -> None:
        self._folders = OpenFolders(self.root)
        self._copies = {git_dir: OpenFolders(copy) for git_dir, copy in self.tree.copies.items()}

    def read(self) -> None:
        """Read all files; what cannot or must not be in the snapshot is in `omitted` afterwards.

        Raises:
            TooLarge: The files have grown over `room`.
        """
        self.progress.done_bytes, self.progress.total_bytes = 0, self.tree.size_bytes
        _let_the_clock_tick(self.tree)
        with ExitStack() as stack:
            for folders in (self._folders, *self._copies.values()):
                stack.enter_context(folders)
            searching = stack.enter_context(ThreadPoolExecutor(1))
            work_tree = (entry for entry in self.tree.entries if entry.git_dir is None)
            self._take_all(work_tree, searching)
            self._prepare_indexes()
            data = (entry for entry in self.tree.entries if entry.git_dir is not None)
            self._take_all(data, searching)

    def _take_all(self, entries: Iterable[ScannedEntry], searching: Executor) -> None:
        """Take entries; while some are read, those before them are searched for credentials."""
        searched: list[_Read] = []
        search = searching.submit(may_be_secret, [])
        for batch in chain(self._batches(entries), [[]]):
            contents = [
                one.content for one in batch if one.is_searched and isinstance(one.content, bytes)
            ]
            following = searching.submit(may_be_secret, contents)
            is_suspicious = search.result()
            for one in searched:
                self._take(one, is_suspicious=is_suspicious)
            searched, search = batch, following

    def _batches(self, entries: Iterable[ScannedEntry]) -> Iterator[list[_Read]]:
        """Read entries; yield about a slice of contents at a time, or one larger file."""
        batch: list[_Read] = []
        size = 0
        for entry in entries:
            if (read := self._read(entry)) is not None:
                batch.append(read)
                size += read.size
            if size >= SLICE_BYTES:
                yield batch
                batch, size = [], 0
        yield batch

    def _read(self, entry: ScannedEntry) -> _Read | None:
        """Read one entry, or record why it is omitted."""
        try:
            if entry.git_dir and object_id(entry.path_in_data) in self._forgotten[entry.git_dir]:
                return None
            if self.known.get(entry.path) == entry and entry.path not in self.indexes:
                self.unread.append(entry.path)
            elif stat.S_ISDIR(entry.mode):
                return _Read(entry, "directory", b"", 0)
            elif stat.S_ISLNK(entry.mode):
                return self._read_link(entry)
            else:
                return self._read_file(entry)
        except (OSError, PathRefused) as error:
            self.omitted.unreadable.append(unreadable(entry.path, error))
        finally:
            self.progress.done_bytes += entry.size
        return None

    def _prepare_indexes(self) -> None:
        """Ask Git about the files that are left out of the repositories."""
        at_home = [file.path for file in (*self.tree.left_at_home, *self.omitted.left_at_home)]
        for git_dir in sorted({entry.git_dir for entry in self.tree.entries if entry.git_dir}):
            above, _, name = git_dir.rpartition("/")
            prefix = f"{above}/" if above else ""
            paths = [path.removeprefix(prefix) for path in at_home if path.startswith(prefix)]
            if name != ".git" or not paths:
                continue
            try:
                data = self.tree.copies.get(git_dir, self.root / git_dir)
                pruned = index_without(self.root / above, data, paths)
            except RepositoryUnreadable as error:
                self.omitted.unreadable.append(unreadable(f"{git_dir}/index", error))
                pruned = (b"", frozenset())
            if pruned is not None:
                self.indexes[f"{git_dir}/index"], self._forgotten[git_dir] = pruned

    def _read_link(self, entry: ScannedEntry) -> _Read | None:
        if entry.git_dir is not None or entry.path.rpartition("/")[2] == ".git":
            return None  # the repository's data is elsewhere, and is not carried
        folder, _, name = entry.path.rpartition("/")
        target = os.fsencode(os.readlink(name, dir_fd=self._folders.opened(folder)))
        return _Read(entry, "symlink", target, len(target))

    def _read_file(self, entry: ScannedEntry) -> _Read | None:
        copy = self._copies.get(entry.git_dir) if entry.git_dir else None
        folders, path = (self._folders, entry.path) if not copy else (copy, entry.path_in_data)
        folder, _, name = path.rpartition("/")
        descriptor = os.open(name, READ_FLAGS, dir_fd=folders.opened(folder))
        try:  # a context manager would take a twentieth of a snapshot's time
            return self._read_opened(entry, descriptor)
        finally:
            os.close(descriptor)

    def _read_opened(self, entry: ScannedEntry, descriptor: int) -> _Read | None:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "It is no longer a file")
        expected = min(status.st_size, _HELD_BYTES)
        head = os.read(descriptor, expected + 1)
        is_whole = len(head) <= expected
        content = self._carried(entry, head, is_whole=is_whole)
        if content is None:
            return None
        if is_whole or content is not head:
            is_searched = content is head and self._is_searched_later(entry, head)
            return _Read(entry, "file", content, len(content), is_searched)
        copy = tempfile.TemporaryFile(prefix="fanout-snapshot-")  # noqa: SIM115 - see `_take`
        size = copy.write(content)
        while size <= self.room and (chunk := os.read(descriptor, _COPY_BYTES)):
            size += copy.write(chunk)
        copy.seek(0)
        return _Read(entry, "file", copy, size)

    def _carried(self, entry: ScannedEntry, head: bytes, *, is_whole: bool) -> bytes | None:
        """Return the snapshot's version of a file's head: the head if the whole file is carried.

        Any other content replaces the whole file; None: the file is left out. Credentials in a
        short file are searched later, together with those in others.

        Raises:
            OSError: The file must be changed for the snapshot, and is too large for that.
        """
        if entry.path in self.indexes:
            return self.indexes[entry.path] or None
        if is_rewritten(entry.path, entry.git_dir) and not is_whole:
            raise OSError(errno.EFBIG, "It may contain credentials and is too large to remove them")
        if entry.git_dir is not None:
            return carried_content(entry.path_in_data, head)
        if entry.path in self.tree.included:
            return head
        if (content := carried_link(entry.path, head)) is not head:
            return content
        is_searched_later = is_whole and self._is_searched_later(entry, head)
        return head if is_searched_later or not self._stays_at_home(entry, head) else None

    def _is_searched_later(self, entry: ScannedEntry, content: bytes) -> bool:
        """Return whether credentials are searched in a file together with others."""
        is_short = len(content) <= SLICE_BYTES
        return is_short and entry.git_dir is None and entry.path not in self.tree.included

    def _stays_at_home(self, entry: ScannedEntry, content: bytes) -> bool:
        """Return whether a file contains a credential, and record that."""
        reason = secret_content(content)
        if reason is not None:
            file = SkippedFile(path=path_text(entry.path), reason=reason)
            self.omitted.left_at_home.append(file)
        return reason is not None

    def _take(self, read: _Read, *, is_suspicious: bool) -> None:
        """Take an entry, and close its content."""
        entry, content = read.entry, read.content
        if isinstance(content, bytes):
            if is_suspicious and read.is_searched and self._stays_at_home(entry, content):
                return
            content = io.BytesIO(content)
        with content:
            if read.kind == "file":
                if read.size > self.room:
                    raise TooLarge
                self.room -= read.size
            mode = entry.mode & PERMISSION_BITS
            self.take(Member(entry.path, read.kind, mode, read.size, content))


def _let_the_clock_tick(tree: Tree) -> None:
    """Wait until a change of any file would change its times.

    A file that changed after it was read, within the same tick, would look unchanged.
    """
    newest = max((entry.stamp[2] for entry in tree.entries), default=0) / 1e9
    age = time.time() - newest
    if age < _CLOCK_TICK_SECONDS:
        time.sleep(min(_CLOCK_TICK_SECONDS - age, _CLOCK_TICK_SECONDS))
