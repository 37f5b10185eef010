"""The changes of jobs that are not in the workspace at the end of a coordinator's run.

Each conflict is reported to the coordinator, which should resolve it. Whether it did cannot be read
from the files. What can be read is whether a file is unchanged since its conflict was reported, so
that the conflict cannot have been resolved.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from orchestrator.coordinator.delivery import Delivery

_State = tuple[int, int, int] | None
"""What changes with a file; None for a missing file."""


@dataclass(frozen=True)
class OpenConflict:
    """A change that was not merged."""

    job_id: str
    path: str
    reason: str
    changed_since: bool
    """Whether the file was changed after the conflict was reported, which may have resolved it."""


@dataclass(frozen=True)
class HeldBackChange:
    """A change that waits for a person's word, because it becomes code on the host."""

    job_id: str
    path: str
    reason: str


class Conflicts:
    """Collects what the deliveries to one workspace did not merge."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._reported: dict[str, dict[str, tuple[str, _State]]] = {}
        self._held_back: dict[str, tuple[HeldBackChange, ...]] = {}

    def add(self, delivery: Delivery) -> None:
        """Add a delivery; a later one of the same job replaces an earlier one."""
        job_id = delivery.result.job_id
        self._held_back[job_id] = tuple(
            HeldBackChange(job_id, change.path, change.reason)
            for change in (delivery.merge.held_back if delivery.merge else ())
        )
        found = delivery.merge.conflicts if delivery.merge else ()
        before = self._reported.get(delivery.result.job_id, {})
        self._reported[delivery.result.job_id] = {
            conflict.path: before.get(conflict.path, (conflict.reason, self._state(conflict.path)))
            for conflict in found
        }

    def open_conflicts(self) -> tuple[OpenConflict, ...]:
        """Return the conflicts in the order in which they were reported."""
        return tuple(
            OpenConflict(job_id, path, reason, changed_since=self._state(path) != state)
            for job_id, conflicts in self._reported.items()
            for path, (reason, state) in conflicts.items()
        )

    def held_back(self) -> tuple[HeldBackChange, ...]:
        """Return the changes that were held back, in the order of their jobs' first delivery."""
        return tuple(change for changes in self._held_back.values() for change in changes)

    def _state(self, path: str) -> _State:
        try:
            found = os.lstat(self._workspace / path)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns
