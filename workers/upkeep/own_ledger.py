"""The ledger's answers on which things are removed, valid only while it is the worker's own.

A Redis that was flushed, restored or replaced by an empty replica knows no job and no worker.
Whoever believed it would remove every sandbox of the installation.
"""

from __future__ import annotations

from orchestrator.jobs.failures import LedgerReplaced
from orchestrator.jobs.store.ledger import Ledger


class OwnLedger:
    """Answers as long as Redis holds the ledger that the worker started with.

    Args:
        ledger: The ledger.
        installation: Its id at the worker's start.
    """

    def __init__(self, ledger: Ledger, installation: str) -> None:
        self._ledger = ledger
        self.installation = installation

    async def is_live(self, job_id: str) -> bool:
        """Return whether the job exists and has not ended.

        Raises:
            LedgerReplaced: Redis holds another ledger.
            LedgerUnavailable: Redis does not respond.
        """
        live = await self._ledger.is_live(job_id)
        await self.verify()
        return live

    async def living_workers(self) -> list[str]:
        """Return the names of the living workers.

        Raises:
            LedgerReplaced: Redis holds another ledger.
            LedgerUnavailable: Redis does not respond.
        """
        workers = await self._ledger.workers()
        await self.verify()
        return [worker.name for worker in workers]

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
