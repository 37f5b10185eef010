"""The snapshots that the children of a job start from: the job's files as they are."""

from __future__ import annotations

import asyncio
from typing import IO

from orchestrator.workspace import changed_snapshot
from orchestrator.workspace.blobs import BlobStore
from workers.sandbox import Sandbox


class ChildSnapshots:
    """The snapshots of one attempt's files.

    Args:
        sandbox: The job's sandbox.
        blobs: Where snapshots are stored.
        own: The snapshot that the job itself started from.
    """

    def __init__(self, sandbox: Sandbox, blobs: BlobStore, own: str | None) -> None:
        self._sandbox = sandbox
        self._blobs = blobs
        self._own = own
        self._lock = asyncio.Lock()
        self._asked = 0
        self._answered = 0
        """The number of the last call that the newest snapshot answers."""
        self._newest: str | None = None

    async def now(self) -> str | None:
        """Store the job's files as they are, and return the blob; None for an empty workspace.

        Calls that wait at the same time share one snapshot, which is begun after the last of them.

        Raises:
            BlobMissing: The job's own snapshot is missing.
            SandboxFailure: The sandbox failed.
            JobFailure: The snapshot cannot be stored.
        """
        self._asked += 1
        number = self._asked
        async with self._lock:
            if self._answered < number:
                answered = self._asked
                with await self._sandbox.changes() as bundle:
                    self._newest = await self.of(bundle)
                self._answered = answered
            return self._newest

    async def of(self, bundle: IO[bytes]) -> str:
        """Store the job's own snapshot with these changes applied, and return the blob.

        Args:
            bundle: The job's changes.

        Raises:
            BlobMissing: The job's own snapshot is missing.
            JobFailure: The snapshot cannot be stored.
        """
        return await changed_snapshot.store(self._blobs, self._own, bundle)
