"""Faults of a worker's process. Its supervisor starts it again."""

from __future__ import annotations

import signal

from tests.chaos.faults.base import Fault, Hit


class WorkerKilled(Fault):
    """kill -9."""

    async def inject(self) -> Hit | None:
        worker = self._worker()
        worker.send(signal.SIGKILL)
        return Hit(workers=[worker.name])


class WorkerStopped(Fault):
    """SIGSTOP, as a frozen machine; it goes on later and does not know."""

    async def inject(self) -> Hit | None:
        worker = self._worker()
        worker.send(signal.SIGSTOP)
        return Hit(workers=[worker.name])

    async def heal(self) -> None:
        self._worker().send(signal.SIGCONT)


class WorkerToldToEnd(Fault):
    """SIGTERM, as for an update."""

    async def inject(self) -> Hit | None:
        worker = self._worker()
        worker.send(signal.SIGTERM)
        return Hit(workers=[worker.name])


class EarlierRelease(WorkerKilled):
    """A worker is replaced by one of the last release, and later that one by one of this release.

    Both are killed, so that their jobs continue with the other release from what is in the ledger.
    """

    async def inject(self) -> Hit | None:
        if self._place.earlier is None:
            return None
        self._worker().release = self._place.earlier
        return await super().inject()

    async def heal(self) -> None:
        self._worker().release = None
        self._worker().send(signal.SIGKILL)
