"""A parent's folder and its snapshot: the immutable archive that a job starts from."""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, TypeVar

from fanout.orchestrator.jobs.changes import SkippedFile
from fanout.orchestrator.jobs.failures import JobFailure
from fanout.orchestrator.jobs.spec import GIB, BlobId
from fanout.orchestrator.workspace.archive import Omitted, TooLarge, write
from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.orchestrator.workspace.rooted import opened
from fanout.orchestrator.workspace.snapshot import IgnoreRulesUnreadable, Tree, scan
from fanout.orchestrator.workspace.staging.staging import record_path, recover

Result = TypeVar("Result")

DEFAULT_MAX_SNAPSHOT_BYTES = 2 * GIB
"""Every host unpacks a snapshot once: one of this size takes about ten seconds, and a larger folder
seldom contains only sources."""


class WorkspaceUnusable(JobFailure):
    """The folder cannot be used for snapshots or merges; the text says what to do."""


@dataclass(frozen=True)
class _LastSnapshot:
    started: float
    """When its scan began, on the monotonic clock."""
    store: str
    blob_id: BlobId
    tree: Tree
    omitted: Omitted


class Workspace:
    """A folder that jobs start from, and that their changes are merged into.

    Use one object per folder and event loop: it remembers the last snapshot.

    Args:
        root: The folder.
        max_snapshot_bytes: The maximum sum of file sizes of a snapshot.
        records: A private folder for the records of merges, with which one whose process is killed
            is finished or undone; None: it stays as it is.
    """

    def __init__(
        self,
        root: Path,
        *,
        max_snapshot_bytes: int = DEFAULT_MAX_SNAPSHOT_BYTES,
        records: Path | None = None,
    ) -> None:
        self.root = root
        self._records = records
        self._max_snapshot_bytes = max_snapshot_bytes
        self._lock = asyncio.Lock()
        self._last: dict[frozenset[str], _LastSnapshot] = {}
        """The last snapshot of each set of included files."""
        self.included: frozenset[str] = frozenset()
        """Files that every snapshot has, as those of `snapshot`."""

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
        """Store a snapshot of the folder as it is now, and return its id.

        Equal trees give equal ids, and an unchanged tree is not read again. `snapshot.scan`
        documents which files a snapshot has.

        Args:
            blobs: The store.
            included: Files, relative to the folder, that the snapshot has even if Git ignores them
                or they seem to be secret.

        Raises:
            WorkspaceUnusable: The folder does not exist or is too large, or Git cannot list the
                files that it ignores.
            BlobStoreUnusable: The store failed.
        """
        asked = time.monotonic()
        included |= self.included
        async with self._lock:
            last = self._last.get(included)
            if last and last.store == blobs.url and asked <= last.started:
                return last.blob_id  # another caller's scan began while this one waited
            started = time.monotonic()
            if last and await self._is_current(last, blobs):
                self._last[included] = replace(last, started=started)
            else:
                blob_id, (tree, omitted) = await blobs.put_written(
                    lambda sink: self._write(sink, included)
                )
                self._last[included] = _LastSnapshot(started, blobs.url, blob_id, tree, omitted)
            return self._last[included].blob_id

    async def _is_current(self, last: _LastSnapshot, blobs: BlobStore) -> bool:
        """Return whether the store has a snapshot, and the folder has not changed since."""
        if last.store != blobs.url or not await blobs.exists(last.blob_id):
            return False
        included = last.tree.included
        tree = await _run_to_end(lambda: self._locked(lambda: self._scan(included), shared=True))
        return tree == last.tree

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

    def _write(self, sink: IO[bytes], included: frozenset[str]) -> tuple[Tree, Omitted]:
        """Scan and write under one lock: between two locks, a merge might change the tree."""

        def scan_and_write() -> tuple[Tree, Omitted]:
            tree = self._scan(included)
            try:
                return tree, write(self.root, tree, sink, max_bytes=self._max_snapshot_bytes)
            except TooLarge as error:
                raise self._too_large() from error

        return self._locked(scan_and_write, shared=True)

    def _scan(self, included: frozenset[str]) -> Tree:
        try:
            tree = scan(self.root, included)
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
            if self.record is not None and self.record.exists():  # of a process that was killed
                fcntl.flock(folder, fcntl.LOCK_EX)
                recover(self.root, self.record)
                fcntl.flock(folder, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            return work()


def _distinct(files: Iterable[SkippedFile]) -> tuple[SkippedFile, ...]:
    return tuple({file.path: file for file in files}.values())


async def _run_to_end(work: Callable[[], Result]) -> Result:
    """Run blocking work in a thread; a cancelled caller waits for its end."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
