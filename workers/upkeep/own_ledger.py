"""The ledger's answers on which things are removed, valid only while it is the worker's own.

A Redis that was flushed, restored or replaced by an empty replica knows no job and no worker.
Whoever believed it would remove every sandbox of the installation.
"""

from __future__ import annotations

import asyncio

import structlog

from fanout.orchestrator.jobs.failures import LedgerReplaced, LedgerUnavailable
from fanout.orchestrator.jobs.store.ledger import Ledger

log = structlog.get_logger(__name__)

TRY_AGAIN_SECONDS = 0.5
"""Between two tries to read the installation's id while Redis is not there: not noticeable when it
comes."""


class OwnLedger:
    """Answers as long as Redis holds the ledger that the worker started with.

    Args:
        ledger: The ledger.
        installation: Its id at the worker's start.
    """

    def __init__(self, ledger: Ledger, installation: str) -> None:
        self._ledger = ledger
        self.installation = installation

    @classmethod
    async def of(cls, ledger: Ledger) -> OwnLedger:
        """Wait for Redis, which may start after its workers, and return the ledger that it holds.

        Raises:
            LedgerMisconfigured: Redis responds, and cannot be used.
        """
        logged = False
        while True:
            try:
                return cls(ledger, await ledger.installation())
            except LedgerUnavailable as error:
                if not error.retryable:
                    raise
                if not logged:
                    log.warning("Cannot connect to Redis, the worker waits", error=str(error))
                logged = True
                await asyncio.sleep(TRY_AGAIN_SECONDS)

    async def is_live(self, job_id: str) -> bool:
        """Return whether the job exists and has not ended.

        Raises:
            LedgerReplaced: Redis holds another ledger.
            LedgerUnavailable: Redis does not respond.
        """
        live = await self._ledger.is_live(job_id)
        await self.verify()
        return live

    async def awaits_collection(self, job_id: str) -> bool:
        """Return whether the job has ended, and its changes are not yet collected.

        Raises:
            LedgerReplaced: Redis holds another ledger.
            LedgerUnavailable: Redis does not respond.
        """
        awaits = await self._ledger.awaits_collection(job_id)
        await self.verify()
        return awaits

    async def living_workers(self) -> list[str]:
        """Return the names of the living workers.

        Raises:
            LedgerReplaced: Redis holds another ledger.
            LedgerUnavailable: Redis does not respond.
        """
        names = await self._ledger.registrations.names()
        await self.verify()
        return names

    async def verify(self) -> None:
        """Check after an answer that it came from the worker's own ledger.

        Raises:
            LedgerReplaced: Redis holds another ledger.
            LedgerUnavailable: Redis does not respond.
        """
        found = await self._ledger.known_installation()
        if found != self.installation:
            raise LedgerReplaced(
                "Redis holds another ledger than at this worker's start"
                f" (installation {found or 'none'} instead of {self.installation}): it was "
                "flushed, restored or replaced. Nothing is removed; start the worker again."
            )
