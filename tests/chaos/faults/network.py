"""Faults of the network between a worker and Redis."""

from __future__ import annotations

from typing import ClassVar

from tests.chaos.faults.base import Fault, Hit
from tests.chaos.proxy import Mode


class NetworkCut(Fault):
    """Connections end, new ones are refused."""

    mode: ClassVar[Mode] = "cut"

    async def inject(self) -> Hit | None:
        worker = self._worker()
        worker.proxy.set_mode(self.mode)
        return Hit(workers=[worker.name])

    async def heal(self) -> None:
        self._worker().proxy.set_mode("pass")


class AnswersLost(NetworkCut):
    """What is asked arrives, and its answer does not."""

    mode = "no answers"


class NetworkSwallows(NetworkCut):
    """Connections stay, and nothing comes through."""

    mode = "swallow"
