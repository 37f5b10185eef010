"""What a person should know of an agent's memory and skills: a file that is not used, and why."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from fanout.orchestrator.logs import Logger

log = Logger(__name__)

Notify = Callable[[str], Awaitable[None]]
"""Is given a sentence for the person who runs an agent, once for each thing to know."""


@dataclass(frozen=True)
class Notice:
    """One thing to know of a file."""

    event: str
    """What happened, for the log."""
    path: str
    fault: str
    """Why; nothing of the file is quoted."""

    def __str__(self) -> str:
        return f"{self.event}: {self.path}: {self.fault}."


class Notices:
    """Notifies of each thing once, and not before every model call.

    Args:
        notify: Who is told, beside the log; None for nobody.
    """

    def __init__(self, notify: Notify | None) -> None:
        self._notify = notify
        self._told: set[Notice] = set()

    async def tell(self, notices: Iterable[Notice]) -> None:
        """Tell what is new among all that is to be known now."""
        now = list(dict.fromkeys(notices))
        new = [notice for notice in now if notice not in self._told]
        self._told = set(now)
        for notice in new:
            log.warning(notice.event, path=notice.path, fault=notice.fault)
            if self._notify is not None:
                await self._notify(str(notice))
