"""The archive of a snapshot.

It is an uncompressed tar of regular files, directories and symlinks, without owners and with the
same time for all, so that equal trees give equal bytes: first the files of the work tree, then the
repositories' own data, both sorted.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from fanout.orchestrator.jobs.changes import SkippedFile
from fanout.orchestrator.workspace.repositories.configuration import Unreadable
from fanout.orchestrator.workspace.repositories.git_data import (
    carried_content,
    carried_link,
    is_rewritten,
    object_id,
)
from fanout.orchestrator.workspace.repositories.repository import index_without
from fanout.orchestrator.workspace.rooted import PERMISSION_BITS, PathRefused, open_below, opened
from fanout.orchestrator.workspace.secret_files import secret_content
from fanout.orchestrator.workspace.snapshot import Entry, Tree, printable, unreadable

ARCHIVE_MTIME = 315_619_200
"""1980-01-02, the time of every file in a snapshot; zip archives have no earlier day."""

_HELD_BYTES = 8 * 1024**2
"""A file up to this size is read at once; a larger one is copied to a temporary file first, because
it may be growing. Credentials are looked for in so many bytes of a file."""

_COPY_BYTES = 1024**2
"""Copied at once: large enough to be quick, small beside a process."""

_CLOCK_TICK_SECONDS = 0.02
"""How coarse the file times of a local disk are: two ticks of a 100 Hz kernel."""


class TooLarge(Exception):
    """The files have more bytes than the limit."""


@dataclass
class Omitted:
    """What of a scanned tree is not in its archive."""

    unreadable: list[SkippedFile] = field(default_factory=list)
    left_at_home: list[SkippedFile] = field(default_factory=list)
    """Files that contain a credential."""


def write(root: Path, tree: Tree, sink: IO[bytes], *, max_bytes: int) -> Omitted:
    """Write the archive of a scanned tree, and return what could not or must not be in it.

    Args:
        root: The folder.
        tree: What `scan` returned for it.
        sink: The stream to write to.
        max_bytes: The maximum sum of file sizes.

    Raises:
        TooLarge: The files have grown over `max_bytes`.
    """
    _let_the_clock_tick(tree)
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.copybufsize = _COPY_BYTES  # type: ignore[attr-defined] # the stubs lack it
        writing = _Writing(archive, root, tree, max_bytes)
        for entry in tree.entries:
            if entry.git_dir is None:
                writing.add(entry)
        writing.prepare_indexes()
        for entry in tree.entries:
            if entry.git_dir is not None:
                writing.add(entry)
    return writing.omitted


def _let_the_clock_tick(tree: Tree) -> None:
    """Wait until a change of any file would change its times.

    A file that changed within the tick of its last time, after it was read, would look unchanged.
    """
    newest = max((entry.stamp[2] for entry in tree.entries), default=0) / 1e9
    age = time.time() - newest
    if age < _CLOCK_TICK_SECONDS:
        time.sleep(min(_CLOCK_TICK_SECONDS - age, _CLOCK_TICK_SECONDS))


@dataclass
class _Writing:
    archive: tarfile.TarFile
    root: Path
    tree: Tree
    room: int
    omitted: Omitted = field(default_factory=Omitted)
    indexes: dict[str, bytes] = field(default_factory=dict)
    """Path -> content: indexes of repositories of which files stay at home."""
    forgotten: defaultdict[str, frozenset[str]] = field(
        default_factory=lambda: defaultdict(frozenset)
    )
    """A repository's data -> the ids of its objects that stay at home."""

    def add(self, entry: Entry) -> None:
        """Add one entry, or note why it is omitted."""
        info = tarfile.TarInfo(entry.path)
        info.mode = entry.mode & PERMISSION_BITS
        info.mtime = ARCHIVE_MTIME
        try:
            if stat.S_ISDIR(entry.mode):
                info.type = tarfile.DIRTYPE
                self.archive.addfile(info)
            elif stat.S_ISLNK(entry.mode):
                self._add_link(info, entry)
            else:
                self._add_file(info, entry)
        except (OSError, PathRefused) as error:
            self.omitted.unreadable.append(unreadable(entry.path, error))

    def prepare_indexes(self) -> None:
        """Find out what the repositories of files that stay at home say about them."""
        at_home = [file.path for file in (*self.tree.left_at_home, *self.omitted.left_at_home)]
        for git_dir in sorted({entry.git_dir for entry in self.tree.entries if entry.git_dir}):
            above, _, name = git_dir.rpartition("/")
            prefix = f"{above}/" if above else ""
            paths = [path.removeprefix(prefix) for path in at_home if path.startswith(prefix)]
            if name != ".git" or not paths:
                continue
            try:
                pruned = index_without(self.root / above, self.root / git_dir, paths)
            except Unreadable as error:
                self.omitted.unreadable.append(unreadable(f"{git_dir}/index", error))
                pruned = (b"", frozenset())
            if pruned is not None:
                self.indexes[f"{git_dir}/index"], self.forgotten[git_dir] = pruned

    def _add_link(self, info: tarfile.TarInfo, entry: Entry) -> None:
        if entry.git_dir is not None or entry.path.rpartition("/")[2] == ".git":
            return  # the repository's data is elsewhere, and stays there
        info.type = tarfile.SYMTYPE
        info.linkname = _read_link(self.root, entry.path)
        self.archive.addfile(info)

    def _add_file(self, info: tarfile.TarInfo, entry: Entry) -> None:
        if entry.git_dir and object_id(entry.path_in_data) in self.forgotten[entry.git_dir]:
            return
        with os.fdopen(open_below(self.root, entry.path), "rb", buffering=0) as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "It is no longer a file")
            expected = min(status.st_size, _HELD_BYTES)
            head = stream.read(expected + 1)
            is_whole = len(head) <= expected
            content = self._carried(entry, head, is_whole=is_whole)
            if content is None:
                return
            if is_whole or content is not head:
                self._add_bytes(info, io.BytesIO(content), len(content))
                return
            with tempfile.TemporaryFile(prefix="fanout-snapshot-") as copy:
                size = copy.write(content)
                while size <= self.room and (chunk := stream.read(_COPY_BYTES)):
                    size += copy.write(chunk)
                copy.seek(0)
                self._add_bytes(info, copy, size)

    def _carried(self, entry: Entry, head: bytes, *, is_whole: bool) -> bytes | None:
        """Return what the archive has of a file's head: itself if it has the whole file.

        Any other content stands for the whole file; None: the file stays at home.

        Raises:
            OSError: The file must be changed for the archive, and is too large for that.
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
        reason = secret_content(head)
        if reason is not None:
            file = SkippedFile(path=printable(entry.path), reason=reason)
            self.omitted.left_at_home.append(file)
        return head if reason is None else None

    def _add_bytes(self, info: tarfile.TarInfo, content: IO[bytes], size: int) -> None:
        if size > self.room:
            raise TooLarge
        self.room -= size
        info.size = size
        self.archive.addfile(info, content)


def add_content(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a plain member to an archive of ours that is no workspace: a layer, a restore point."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _read_link(root: Path, path: str) -> str:
    directory, _, name = path.rpartition("/")
    with opened(open_below(root, directory, os.O_DIRECTORY)) as descriptor:
        return os.readlink(name, dir_fd=descriptor)
