"""Retention: removes the records of jobs some time after their end, and blobs that no job needs.

Every worker does this; they do not interfere with each other.
"""

from __future__ import annotations

import asyncio
import time

import structlog

from fanout.orchestrator.jobs.failures import JobFailure
from fanout.orchestrator.jobs.store.ledger import Ledger
from fanout.orchestrator.workspace.blobs import BlobStore

log = structlog.get_logger(__name__)

LOOKS_PER_RETENTION = 24
"""The number of checks in the time that a job is kept: it is removed late by one of these parts at
most."""
MAX_INTERVAL_SECONDS = 3600.0
"""The longest interval: the jobs of an hour are removed within seconds."""
MARGIN_SECONDS = 3600.0
"""A blob is removed only if it is this much older than the oldest job: a job's snapshot is stored
before the job is, and the clocks of the store and of Redis differ."""


class Retention:
    """Removes jobs that ended `keep_seconds` ago, and blobs that are older than all other jobs.

    This needs no list of references: a blob that a job uses was stored, or its age was reset, when
    the job was submitted or later.

    Args:
        ledger: Holds the jobs.
        blobs: Holds the blobs.
        keep_seconds: How long an ended job is kept.
    """

    def __init__(self, ledger: Ledger, blobs: BlobStore, keep_seconds: float) -> None:
        self._ledger = ledger
        self._blobs = blobs
        self._keep_seconds = keep_seconds

    async def run(self) -> None:
        """Remove what is due, at intervals, until cancelled; failures are logged."""
        while True:
            try:
                await self.remove_expired()
            except JobFailure as error:
                log.warning("old jobs not removed", error=str(error))
            await asyncio.sleep(min(self._keep_seconds / LOOKS_PER_RETENTION, MAX_INTERVAL_SECONDS))

    async def remove_expired(self) -> None:
        """Remove what is due now.

        Raises:
            LedgerUnavailable: Redis does not answer.
            JobFailure: The blob store does not answer.
        """
        forgotten = await self._ledger.forget(self._keep_seconds)
        oldest = await self._ledger.oldest_submission()
        until = min(time.time() - self._keep_seconds, oldest or time.time())
        removed = await self._blobs.sweep(until - MARGIN_SECONDS)
        if forgotten or removed:
            log.info("old jobs removed", jobs=forgotten, blobs=removed)
