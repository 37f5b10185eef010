"""What all faults have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from tests.chaos.installation import Installation
from tests.chaos.workers import SupervisedWorker


@dataclass
class Hit:
    """Whom a fault hit."""

    workers: list[str] = field(default_factory=list)
    """Names of worker processes, as the ledger knows them."""
    jobs: list[str] = field(default_factory=list)
    everybody: bool = False


class Fault(ABC):
    """One fault; `heal` undoes what does not mend itself."""

    def __init__(self, place: Installation, target: int) -> None:
        self._place = place
        self._target = target

    @abstractmethod
    async def inject(self) -> Hit | None:
        """Break it; None when there was nothing to break."""

    async def heal(self) -> None:  # noqa: B027 - most faults need none
        """Nothing, where a supervisor or the next attempt mends it."""

    def _worker(self) -> SupervisedWorker:
        return self._place.workers[self._target % len(self._place.workers)]
