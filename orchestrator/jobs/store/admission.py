"""Admission: which queued jobs are sent to workers now.

Jobs wait in the ledger, tree by tree, and only those that can run now are sent. So a large tree
cannot starve a small one, and queued jobs hold no slot. The limits are in the ledger (`policy.py`).
"""

from __future__ import annotations

from .ledger import Ledger
from .queue import CeleryQueue

BATCH = 64
"""The most jobs in one call of the ledger."""


class Admission:
    """Sends jobs from the ledger to the queue.

    Any number of processes may do so at the same time.
    """

    def __init__(self, ledger: Ledger, queue: CeleryQueue) -> None:
        self._ledger = ledger
        self._queue = queue

    async def pump(self) -> int:
        """Send all jobs that can run now, and return their number.

        Raises:
            LedgerUnavailable: Redis does not respond. The reaper requeues jobs that were dispatched
                but not sent.
        """
        sent = 0
        while True:
            jobs = await self._ledger.dispatch(BATCH)
            if jobs:
                await self._queue.send(jobs)
                sent += len(jobs)
            if len(jobs) < BATCH:
                return sent
