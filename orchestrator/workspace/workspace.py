"""A parent's folder and its snapshot: the immutable archive that a job starts from."""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TypeVar

from ..cancellation import uninterrupted
from ..jobs.changes import SkippedFile
from ..jobs.failures import BlobMissing, JobFailure
from ..jobs.spec import GIB, BlobId, StartFiles
from .blobs import BlobStore
from .layers import write_layer
from .repositories.self_contained import DataCopies
from .rooted import opened
from .snapshots.archive import Written, write
from .snapshots.contents import Omitted, Progress, TooLarge
from .snapshots.delta import (
    Base,
    Delta,
    WholeSnapshotNeeded,
    changes_since,
)
from .snapshots.index import SnapshotIndexes
from .snapshots.scan import IgnoreRulesUnreadable, Tree, scan
from .staged_merge import record_path, recover

Result = TypeVar("Result")

DEFAULT_MAX_SNAPSHOT_BYTES = 2 * GIB
"""The largest snapshot. Every host unpacks a snapshot once; one of this size takes about ten
seconds, and a larger folder seldom contains only sources."""


class WorkspaceUnusable(JobFailure):
    """The folder cannot be used for snapshots or merges; the text says what to do."""


@dataclass(frozen=True)
class _LastSnapshot:
    started: float
    """When its scan began, on the monotonic clock."""
    store: str
    start: StartFiles
    base: Base
    tree: Tree
    omitted: Omitted


class Workspace:
    """A folder that jobs start from, and that their changes are merged into.

    Use one object per folder and event loop: it remembers the last snapshot.

    Args:
        root: The folder.
        max_snapshot_bytes: The maximum sum of file sizes of a snapshot.
        records: A private folder for the records of merges, with which one whose process is killed
            is finished or undone; None: it stays unfinished.
        indexes: Remember the snapshots for other processes; None: only this object does.
        repositories: A private folder for copies of the data that a repository has outside of the
            folder; None: that data is not read, because the files of the folder are not trusted.
    """

    def __init__(
        self,
        root: Path,
        *,
        max_snapshot_bytes: int = DEFAULT_MAX_SNAPSHOT_BYTES,
        records: Path | None = None,
        indexes: SnapshotIndexes | None = None,
        repositories: Path | None = None,
    ) -> None:
        self.root = root
        self._copies = None if repositories is None else DataCopies(repositories)
        self._records = records
        self._indexes = indexes
        self._max_snapshot_bytes = max_snapshot_bytes
        self._lock = asyncio.Lock()
        self._last: dict[frozenset[str], _LastSnapshot] = {}
        """The last snapshot of each set of included files."""
        self.included: frozenset[str] = frozenset()
        """Files that every snapshot has, like the argument of `snapshot`."""
        self.progress = Progress()
        """The progress of the whole snapshot that is being written."""

    @cached_property
    def record(self) -> Path | None:
        """The record of the merge that is under way or was interrupted; blocks."""
        return None if self._records is None else record_path(self._records, self.root)

    @property
    def skipped(self) -> tuple[SkippedFile, ...]:
        """The files that the last snapshots left out because they cannot be copied."""
        return _distinct(
            file
            for last in self._last.values()
            for file in (*last.tree.skipped, *last.omitted.unreadable)
        )

    @property
    def left_at_home(self) -> tuple[SkippedFile, ...]:
        """The files that the last snapshots left out because they seem to be secret."""
        return _distinct(
            file
            for last in self._last.values()
            for file in (*last.tree.left_at_home, *last.omitted.left_at_home)
        )

    @property
    def limits(self) -> tuple[str, ...]:
        """What Git cannot do with the files of the last snapshots, a sentence each."""
        return tuple({limit: None for last in self._last.values() for limit in last.tree.limits})

    @property
    def measured(self) -> tuple[int, int]:
        """The number and the bytes of files in the last snapshots, without Git's own data."""
        files = [
            entry
            for last in self._last.values()
            for entry in last.tree.entries
            if entry.git_dir is None and not stat.S_ISDIR(entry.mode)
        ]
        return len(files), sum(entry.size for entry in files)

    async def snapshot(self, blobs: BlobStore, included: frozenset[str] = frozenset()) -> BlobId:
        """Store a whole snapshot of the folder as it is now, and return its id.

        Equal trees give equal ids, and an unchanged tree is not read again. `scan` documents which
        files a snapshot has.

        Args:
            blobs: The store.
            included: Files, relative to the folder, that the snapshot has even if Git ignores them
                or they seem to be secret.

        Raises:
            WorkspaceUnusable: The folder does not exist or is too large, or Git cannot list the
                files that it ignores.
            BlobStoreUnusable: The store failed.
        """
        start = await self._stored(blobs, included | self.included, whole=True)
        assert start.snapshot is not None  # noqa: S101 - it was stored
        return start.snapshot

    async def start_files(
        self, blobs: BlobStore, included: frozenset[str] = frozenset()
    ) -> StartFiles:
        """Store what jobs need to start from the folder as it is now.

        It is an earlier snapshot with a layer of the later changes, if these are small; only
        changed files are read.

        Args:
            blobs: The store.
            included: As for `snapshot`.

        Raises:
            WorkspaceUnusable, BlobStoreUnusable: As `snapshot`.
        """
        return await self._stored(blobs, included | self.included, whole=False)

    async def _stored(
        self, blobs: BlobStore, included: frozenset[str], *, whole: bool
    ) -> StartFiles:
        asked = time.monotonic()
        async with self._lock:
            last = self._last.get(included)
            is_current = last and last.store == blobs.url and asked <= last.started
            if last and is_current and not (whole and last.start.layers):
                return last.start  # another caller's scan began while this one waited
            self._last[included] = await self._changed(
                blobs, included, whole=whole
            ) or await self._whole(blobs, included)
            return self._last[included].start

    async def _changed(
        self, blobs: BlobStore, included: frozenset[str], *, whole: bool
    ) -> _LastSnapshot | None:
        """Store the changes since the last whole snapshot; None if a whole one is needed."""
        started = time.monotonic()
        base = await self._base(blobs, included)
        if base is None:
            return None
        try:
            tree, delta = await _run_to_end(
                lambda: self._locked(lambda: self._since(base, whole=whole), shared=True)
            )
        except WholeSnapshotNeeded:
            return None
        start = StartFiles(base.snapshot)
        if delta.files:
            contents = sorted(delta.contents.items())
            layer, _ = await blobs.put_written(
                lambda sink: write_layer(sink, delta.files, contents)
            )
            start = StartFiles(base.snapshot, (layer,))
        return _LastSnapshot(started, blobs.url, start, base, tree, delta.omitted)

    async def _base(self, blobs: BlobStore, included: frozenset[str]) -> Base | None:
        """Return the last whole snapshot, kept from now on, if the store has it."""
        last, base = self._last.get(included), None
        if last is not None and last.store == blobs.url:
            base = last.base
        elif self._indexes is not None:
            base = await asyncio.to_thread(self._indexes.load, self.root, blobs.url, included)
        if base is not None:
            try:
                await blobs.keep(base.snapshot)
            except BlobMissing:
                return None
        return base

    def _since(self, base: Base, *, whole: bool) -> tuple[Tree, Delta]:
        tree = self._scan(base.tree.included, base.tree)
        if whole and not base.describes(tree):
            raise WholeSnapshotNeeded
        return tree, changes_since(base, self.root, tree)

    async def _whole(self, blobs: BlobStore, included: frozenset[str]) -> _LastSnapshot:
        started, scanned_at = time.monotonic(), time.time()
        blob_id, (tree, written) = await blobs.put_written(lambda sink: self._write(sink, included))
        base = Base(blob_id, tree, written, scanned_at)
        if self._indexes is not None:
            await asyncio.to_thread(self._indexes.save, self.root, blobs.url, base)
        start = StartFiles(blob_id)
        return _LastSnapshot(started, blobs.url, start, base, tree, written.omitted)

    async def alone(self, work: Callable[[], Result]) -> Result:
        """Run blocking `work` in a thread while no other snapshot or merge uses the folder.

        This includes those of other processes. A cancelled caller waits for the end of `work`.

        Args:
            work: Called without arguments; its exceptions pass.

        Returns:
            What `work` returned.

        Raises:
            WorkspaceUnusable: The folder does not exist.
        """
        async with self._lock:
            return await _run_to_end(lambda: self._locked(work, shared=False))

    def _write(self, sink: IO[bytes], included: frozenset[str]) -> tuple[Tree, Written]:
        """Scan and write under one lock: between two locks, a merge might change the tree."""

        def scan_and_write() -> tuple[Tree, Written]:
            tree = self._scan(included)
            try:
                return tree, write(
                    self.root,
                    tree,
                    sink,
                    max_bytes=self._max_snapshot_bytes,
                    progress=self.progress,
                )
            except TooLarge as error:
                raise self._too_large() from error

        return self._locked(scan_and_write, shared=True)

    def _scan(self, included: frozenset[str], before: Tree | None = None) -> Tree:
        try:
            tree = scan(self.root, included, before, self._copies)
        except IgnoreRulesUnreadable as error:
            raise WorkspaceUnusable(
                f"Git cannot list the files of {self.root} that it ignores ({error}): install or "
                "repair it."
            ) from error
        if tree.size_bytes > self._max_snapshot_bytes:
            raise self._too_large()
        return tree

    def _too_large(self) -> WorkspaceUnusable:
        return WorkspaceUnusable(
            f"The workspace {self.root} has more than {self._max_snapshot_bytes:,} bytes: name a "
            "smaller folder, add what jobs do not need to .gitignore, or increase "
            "FANOUT_LIMITS__SNAPSHOT_BYTES."
        )

    def _locked(self, work: Callable[[], Result], *, shared: bool) -> Result:
        """Run `work` with a lock on the folder itself, which adds no lock file to the tree."""
        try:
            folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise WorkspaceUnusable(
                f"The workspace {self.root} cannot be used ({error.strerror}): name a folder that "
                "exists."
            ) from error
        with opened(folder):
            fcntl.flock(folder, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            if self.record is not None and self.record.exists():  # from a killed process
                fcntl.flock(folder, fcntl.LOCK_EX)
                recover(self.root, self.record)
                fcntl.flock(folder, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            return work()


def _distinct(files: Iterable[SkippedFile]) -> tuple[SkippedFile, ...]:
    return tuple({file.path: file for file in files}.values())


async def _run_to_end(work: Callable[[], Result]) -> Result:
    """Run blocking work in a thread; a cancelled caller waits for its end."""
    return await uninterrupted(asyncio.to_thread(work))
