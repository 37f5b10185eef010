"""Admission: which waiting jobs go to a worker now.

Jobs wait in the ledger, tree by tree, and only what can run at once goes to the queue. So a tree of
a thousand does not stand in the way of a tree of three, and limits hold without anybody waiting in
line with a place in hand. What the limits are, the ledger knows (`policy.py`).
"""

from __future__ import annotations

from orchestrator.jobs.store.ledger import Ledger
from orchestrator.jobs.store.queue import JobQueue

BATCH = 64
"""Jobs dispatched at once; more come with the next turn of the loop."""


class Admission:
    """Moves jobs from the ledger to the queue.

    Any process may do it at any time, also several at once.
    """

    def __init__(self, ledger: Ledger, queue: JobQueue) -> None:
        self._ledger = ledger
        self._queue = queue

    async def pump(self) -> int:
        """Send whatever there is room for; how many.

        Raises:
            LedgerUnavailable: Redis does not answer. What was taken and not sent is taken back by
                the reaper when its time under way is over.
        """
        sent = 0
        while True:
            jobs = await self._ledger.dispatch(BATCH)
            if jobs:
                await self._queue.send(jobs)
                sent += len(jobs)
            if len(jobs) < BATCH:
                return sent
