"""Retention: what is known of a job goes some time after its end, and so do the blobs that no job needs.

Every worker looks; they do not mind each other.
"""

from __future__ import annotations

import asyncio
import time

import structlog

from orchestrator.jobs.failures import JobFailure
from orchestrator.jobs.store.ledger import Ledger
from orchestrator.workspace.blobs import BlobStore

log = structlog.get_logger(__name__)

LOOKS_PER_RETENTION = 24
"""How late something goes, at the most, as a share of the time that it was to be kept."""
MAX_INTERVAL_SECONDS = 3600.0
"""An hour's jobs are forgotten in seconds."""
MARGIN_SECONDS = 3600.0
"""Blobs are this much older than the oldest job before they go: a job's snapshot is stored before
the job is, and the clocks of the store and of Redis differ."""


class Retention:
    """Forgets jobs that ended `keep_seconds` ago, and removes blobs older than all jobs that are left.

    No list of references is kept: a blob that a job uses was stored, or kept, when the job was
    submitted or later.
    """

    def __init__(self, ledger: Ledger, blobs: BlobStore, keep_seconds: float) -> None:
        self._ledger = ledger
        self._blobs = blobs
        self._keep_seconds = keep_seconds

    async def run(self) -> None:
        """Look for ever."""
        while True:
            try:
                await self.look()
            except JobFailure as error:
                log.warning("old jobs not removed", error=str(error))
            await asyncio.sleep(min(self._keep_seconds / LOOKS_PER_RETENTION, MAX_INTERVAL_SECONDS))

    async def look(self) -> None:
        """Remove what is due now."""
        forgotten = await self._ledger.forget(self._keep_seconds)
        oldest = await self._ledger.oldest_submission()
        until = min(time.time() - self._keep_seconds, oldest or time.time())
        removed = await self._blobs.sweep(until - MARGIN_SECONDS)
        if forgotten or removed:
            log.info("old jobs removed", jobs=forgotten, blobs=removed)
