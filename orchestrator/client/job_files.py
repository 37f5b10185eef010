"""`JobFiles`: files without a person's folder, on their way into jobs and out of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..cancellation import uninterrupted
from ..jobs.changes import SkippedFile
from ..jobs.result import JobResult
from ..jobs.spec import BlobId
from ..jobs.state import JobRecord
from ..jobs.store.snapshot_owners import SnapshotOwners
from ..workspace.blobs import BlobStore
from ..workspace.exchange.private_places import PrivatePlaces
from ..workspace.exchange.result_archive import ResultArchive
from ..workspace.workspace import Workspace

Result = TypeVar("Result")
IsWanted = Callable[[], bool]


@dataclass(frozen=True)
class StoredFiles:
    """A snapshot of a temporary folder."""

    snapshot: BlobId
    files: int
    """The number of files and links of the work tree; the repository's own data is not counted."""
    size_bytes: int
    left_out: tuple[SkippedFile, ...]
    """Files that were left out because they seem to be secret, or cannot be copied."""
    limits: tuple[str, ...] = ()
    """What Git cannot do with the files, a sentence each."""


class JobFiles:
    """Stores uploaded files as snapshots, and reads the files that jobs leave.

    Args:
        blobs: The blob store.
        places: The private folders for files until they are a snapshot.
        owners: Records who has stored which snapshot.
        max_bytes: The maximum sum of file sizes of a snapshot.
    """

    def __init__(
        self, blobs: BlobStore, places: PrivatePlaces, owners: SnapshotOwners, max_bytes: int
    ) -> None:
        self._blobs = blobs
        self._places = places
        self.owners = owners
        self.max_bytes = max_bytes

    @asynccontextmanager
    async def private_place(self) -> AsyncIterator[Path]:
        """Yield an empty private folder, which is removed afterwards.

        Raises:
            OSError: It cannot be created.
        """
        place = self._places.new()
        folder = await asyncio.to_thread(place.__enter__)
        try:
            yield folder
        finally:
            await asyncio.shield(asyncio.to_thread(place.__exit__, None, None, None))

    async def store(self, folder: Path) -> StoredFiles:
        """Store a snapshot of a private folder.

        Raises:
            WorkspaceUnusable: It is too large.
            BlobStoreUnusable: The blob store failed.
        """
        workspace = Workspace(folder, max_snapshot_bytes=self.max_bytes)
        snapshot = await workspace.snapshot(self._blobs)
        files, size_bytes = workspace.measured
        left_out = (*workspace.left_at_home, *workspace.skipped)
        # The folder exists for a moment, and nobody but this service knows its name.
        limits = tuple(limit.replace(str(folder), "the files") for limit in workspace.limits)
        return StoredFiles(snapshot, files, size_bytes, left_out, limits)

    async def archive(
        self, record: JobRecord, result: JobResult, *, changed_only: bool
    ) -> Iterator[bytes]:
        """Return the files after a job as a tar.gz, in chunks; iterating blocks.

        Args:
            record: The job.
            result: Its result.
            changed_only: Only the files that the job added or changed.

        Raises:
            BlobMissing: A part of them has expired.
            MalformedBundle: A part of them cannot be read.
        """
        start = [] if changed_only else list(record.start.layers)
        ids = [*start, *([result.changes] if result.changes else [])]
        bundles = [await self._blobs.fetch(one) for one in ids]
        base = None
        if record.snapshot is not None and not changed_only:
            base = await self._blobs.fetch(record.snapshot)
        return (await asyncio.to_thread(ResultArchive, base, bundles)).chunks()


async def to_its_end(work: Callable[[IsWanted], Result], threads: Executor) -> Result:
    """Run blocking work in a thread; a cancelled caller signals it, and waits for its end.

    Args:
        work: Gets a function that returns False when the caller is cancelled.
        threads: One of these runs it.
    """
    unwanted = threading.Event()
    running = asyncio.get_running_loop().run_in_executor(
        threads, work, lambda: not unwanted.is_set()
    )
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        unwanted.set()
        await uninterrupted(asyncio.wait([running]))
        raise
