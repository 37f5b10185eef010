"""A queue inside one process."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence

from fanout.orchestrator.jobs.failures import LedgerUnavailable
from fanout.orchestrator.jobs.store.ledger import Dispatched
from fanout.orchestrator.jobs.store.queue import CeleryQueue


class InMemoryQueue(CeleryQueue):
    """A fake queue inside one process, with the same message format, that can fail on demand.

    `fail_before` and `fail_after` are the numbers of sends that are to raise before, and after, the
    delivery.

    Args:
        deliver: Called with each id.
    """

    def __init__(self, deliver: Callable[[str], Awaitable[None]]) -> None:
        self._deliver = deliver
        self.fail_before = 0
        self.fail_after = 0
        self.sent: list[str] = []
        """The messages as they would be sent."""

    async def send(self, jobs: Sequence[Dispatched]) -> None:
        """Deliver each id, encoded and decoded as a message.

        Raises:
            LedgerUnavailable: As requested by `fail_before` or `fail_after`.
        """
        for job in jobs:
            if self.fail_before > 0:
                self.fail_before -= 1
                raise LedgerUnavailable("The broker does not answer (before).")
            message = json.dumps([[job.spec.id], {}, {}])
            self.sent.append(message)
            await self._deliver(json.loads(message)[0][0])
            if self.fail_after > 0:
                self.fail_after -= 1
                raise LedgerUnavailable("The broker does not answer (after).")

    async def close(self) -> None:
        """Do nothing: there is no connection."""
