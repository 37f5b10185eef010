"""The outcome of a merge: the merged changes, and the others with their reasons."""

from __future__ import annotations

from ..executable_config import is_unknown_hidden
from ..jobs.changes import ChangeKind, SkippedFile
from ..jobs.spec import WireModel
from .three_way import ConflictKind, How


class MergedFile(WireModel):
    """A change that the workspace contains now."""

    path: str
    change: ChangeKind
    how: How
    """`taken`: the job's version replaced an unchanged file; `already`: the workspace had the
    change before; `merged`: combined with changes made in the workspace."""


class Conflict(WireModel):
    """A change that conflicts with another one; the workspace keeps its own version."""

    path: str
    kind: ConflictKind
    reason: str
    """The two changes that conflict, in one sentence."""


class NotMerged(WireModel):
    """A change that was not applied, for another reason than a conflict."""

    path: str
    reason: str


class HeldBack(WireModel):
    """A change that was not applied, because its file runs on the host without a command."""

    path: str
    change: ChangeKind
    reason: str


class MergeReport(WireModel):
    """The outcome of each change of a bundle."""

    applied: tuple[MergedFile, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    refused: tuple[NotMerged, ...] = ()
    """The path or link leads out of the workspace, or the bundle is inconsistent."""
    failed: tuple[NotMerged, ...] = ()
    """An operating system error (a full disk, no permission): the file is unchanged, and another
    merge may succeed."""
    skipped: tuple[SkippedFile, ...] = ()
    """Changed by the job, but not contained in its bundle."""
    held_back: tuple[HeldBack, ...] = ()
    """Changes that wait for a person's permission: a merge with `include_executable_config` applies
    them."""

    @property
    def unknown_hidden(self) -> tuple[str, ...]:
        """The merged files with hidden names for which no program is known that obeys them."""
        return tuple(
            file.path
            for file in self.applied
            if file.how != "already"
            and file.change != ChangeKind.DELETED
            and is_unknown_hidden(file.path)
        )

    @property
    def complete(self) -> bool:
        """Whether the workspace contains every change of the job now."""
        return not (self.conflicts or self.refused or self.failed or self.skipped or self.held_back)
