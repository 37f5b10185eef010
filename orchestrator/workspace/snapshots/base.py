"""A whole snapshot that is stored, with what tells later which files have changed since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from fanout.orchestrator.jobs.spec import BlobId
from fanout.orchestrator.workspace.snapshots.archive import Written
from fanout.orchestrator.workspace.snapshots.scan import Entry, Tree

_SECOND = 10**9
_COARSE_SECONDS = 2
"""How coarse the times of a file system without fractions of a second are: FAT counts pairs."""


@dataclass(frozen=True)
class Base:
    """A whole snapshot."""

    snapshot: BlobId
    tree: Tree
    """What was scanned for it."""
    written: Written
    """What its archive has."""
    scanned_at: float
    """When the scan began, in seconds since the epoch."""

    def describes(self, tree: Tree) -> bool:
        """Return whether a snapshot of a tree would be this one."""
        return tree == self.tree and not self._unsettled

    @cached_property
    def known(self) -> Mapping[str, Entry]:
        """Path -> the entry of each file of which an equal entry means an equal content."""
        versions, made = self.written.versions, self.written.made | self._unsettled
        return {
            entry.path: entry
            for entry in self.tree.entries
            if entry.path in versions and entry.path not in made
        }

    @cached_property
    def _unsettled(self) -> frozenset[str]:
        """The files that may have changed within the second of their last time, after a look."""
        since = (self.scanned_at - _COARSE_SECONDS) * _SECOND
        return frozenset(
            entry.path
            for entry in self.tree.entries
            if entry.stamp[2] > since and entry.stamp[2] % _SECOND == 0
        )
