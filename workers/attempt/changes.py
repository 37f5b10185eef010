"""Collects a job's change bundle and stores it, within the time that the job has for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import IO

from fanout.orchestrator.jobs.changes import ChangeBundle, FileChange
from fanout.orchestrator.jobs.result import CollectedChanges, first_files
from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.workers.attempt.attempt import Attempt
from fanout.workers.heartbeat import elapsed_clock
from fanout.workers.sandbox import Sandbox, SandboxDied

CHANGES_SECONDS = 60.0
"""The time limit for collecting the changes of a job that was not stopped."""
HURRIED_CHANGES_SECONDS = 1.0
"""The time limit, from when it was stopped, for collecting the changes of a cancelled or late job:
with the end of its processes, the job ends within two seconds. What takes longer is collected after
its end."""
HURRIED_AT_ONCE = 2 * (os.cpu_count() or 1)
"""Collections of stopped jobs at once: each takes a processor, so more would all be late."""


class ChangeCollections:
    """Collects the changes of a worker's jobs.

    Args:
        blobs: Where the change bundles are stored.
    """

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self.slots = asyncio.Semaphore(HURRIED_AT_ONCE)
        """Taken by the collections of jobs that were stopped: many may be stopped at once."""

    async def of_attempt(self, attempt: Attempt, sandbox: Sandbox) -> CollectedChanges:
        """Collect the changes of an attempt that ends its job.

        Args:
            attempt: The attempt; one that was stopped has less time.
            sandbox: Its sandbox.

        Raises:
            SandboxDied: It takes too long. An engine that hangs may answer the next attempt.
            SandboxFailure: The sandbox or the collection failed.
        """
        slot: AbstractAsyncContextManager[object] = nullcontext()
        seconds = CHANGES_SECONDS
        if attempt.stopped_at is not None:
            slot = self.slots
            seconds = max(attempt.stopped_at + HURRIED_CHANGES_SECONDS - elapsed_clock(), 0)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.sleep(0)  # nothing begins when the time is over
                async with slot:
                    return await self.store(sandbox.changes())
        except TimeoutError:
            raise SandboxDied(
                f"The job's changes could not be collected within {seconds:.1f} s."
            ) from None

    async def store(self, collecting: Awaitable[IO[bytes]]) -> CollectedChanges:
        """Store a change bundle as a blob, and return what it lists.

        Args:
            collecting: Returns the bundle.

        Raises:
            JobFailure: The bundle cannot be collected, or the blob not be stored.
        """
        with await collecting as bundle:
            files = await asyncio.to_thread(_files, bundle)
            if not files:
                return CollectedChanges()
            bundle.seek(0)
            blob = await self._blobs.put_file(bundle)
        listed, omitted = first_files(files)
        return CollectedChanges(files_modified=listed, files_omitted=omitted, changes=blob)


def _files(bundle: IO[bytes]) -> tuple[FileChange, ...]:
    with ChangeBundle.open(bundle) as opened_bundle:
        return opened_bundle.changes.summary()
