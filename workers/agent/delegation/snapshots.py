"""What the children of a job start from: the job's files as they are."""

from __future__ import annotations

import asyncio
from typing import IO

from fanout.orchestrator.jobs.spec import StartFiles
from fanout.orchestrator.workspace import layers
from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.workers.sandbox import Sandbox


class ChildSnapshots:
    """The snapshots of one attempt's files.

    Args:
        sandbox: The job's sandbox.
        blobs: Where snapshots are stored.
        own: What the job itself started from.
    """

    def __init__(self, sandbox: Sandbox, blobs: BlobStore, own: StartFiles) -> None:
        self._sandbox = sandbox
        self._blobs = blobs
        self._own = own
        self._lock = asyncio.Lock()
        self._asked = 0
        self._answered = 0
        """The number of the last call that the newest snapshot answers."""
        self._newest = own

    async def now(self) -> StartFiles:
        """Store the job's files as they are, and return what a child starts from.

        Calls that wait at the same time share one answer, which is begun after the last of them.

        Raises:
            BlobMissing: A blob of the job's own start is missing.
            SandboxFailure: The sandbox failed.
            JobFailure: What the job changed cannot be stored.
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

    async def of(self, bundle: IO[bytes]) -> StartFiles:
        """Store these changes as a layer on the job's own start; return what a child starts from.

        Args:
            bundle: The job's changes.

        Raises:
            BlobMissing: A blob of the job's own start is missing.
            JobFailure: The layer cannot be stored.
        """
        return await layers.start_after(self._blobs, self._own, bundle)
