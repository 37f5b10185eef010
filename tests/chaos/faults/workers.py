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
