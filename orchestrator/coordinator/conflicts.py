"""What of the jobs' changes did not get into the workspace by the end of a coordinator's run.

A coordinator is told of each conflict and is to settle it. Whether it did cannot be read from the
files: only that a file still is as it was when the conflict was told, so that nobody has done
anything about it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from orchestrator.coordinator.delivery import Delivery

_State = tuple[int, int, int] | None


@dataclass(frozen=True)
class OpenConflict:
    """A change that was not put in."""

    job_id: str
    path: str
    reason: str
    changed_since: bool
    """Somebody has changed the file since: the conflict may be settled."""


class Conflicts:
    """Collects the conflicts of all deliveries to one workspace."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._told: dict[str, dict[str, tuple[str, _State]]] = {}

    def note(self, delivery: Delivery) -> None:
        """Take a delivery; of a job that is delivered again the newest counts."""
        found = delivery.merge.conflicts if delivery.merge else ()
        before = self._told.get(delivery.result.job_id, {})
        self._told[delivery.result.job_id] = {
            conflict.path: before.get(conflict.path, (conflict.reason, self._state(conflict.path)))
            for conflict in found
        }

    def left(self) -> tuple[OpenConflict, ...]:
        """The conflicts as they stand now, in the order in which they were told."""
        return tuple(
            OpenConflict(job_id, path, reason, changed_since=self._state(path) != state)
            for job_id, told in self._told.items()
            for path, (reason, state) in told.items()
        )

    def _state(self, path: str) -> _State:
        """What a change of the file changes; None where there is none."""
        try:
            found = os.lstat(self._workspace / path)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns
