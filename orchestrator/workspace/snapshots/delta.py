"""What was changed in a folder since a whole snapshot of it, for a layer on that snapshot.

It is the difference to the whole snapshot, never to an earlier layer: there is one layer at most,
and it is small, or the snapshot is stored as a whole again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ...jobs.changes import ChangedFile, ChangeKind, FileVersion
from ...jobs.spec import BlobId
from ...path_text import path_text
from .archive import StoredVersion, Written
from .contents import Contents, Member, Omitted, TooLarge
from .scan import ScannedEntry, Tree

_SECOND = 10**9
_COARSE_SECONDS = 2
"""The precision of the times of a file system without fractions of a second: FAT counts pairs of
seconds."""
MAX_BYTES = 16 * 1024**2
"""The most bytes of the changed contents: they are in memory until the layer is written."""

MAX_PATHS = 2000
"""The most changes: a host stacks a layer of so many in a fraction of the time of a snapshot."""

SMALL_BYTES, SMALL_PATHS = 1024**2, 100
"""The size up to which a layer is worthwhile on a snapshot of any size."""

_SHARE = 4
"""The largest part of a snapshot's size that a layer may have. A layer is read, sent and stacked
again for every job, and a larger one would soon cost more than a whole snapshot."""

_MAX_NAMES = 250
"""The most names in a path: the storage service takes no deeper one in a layer."""


@dataclass(frozen=True)
class Base:
    """A whole snapshot."""

    snapshot: BlobId
    tree: Tree
    """The scanned tree."""
    written: Written
    """The content of its archive."""
    scanned_at: float
    """When the scan began, in seconds since the epoch."""

    def describes(self, tree: Tree) -> bool:
        """Return whether a snapshot of a tree would equal this one."""
        return tree == self.tree and not self._unsettled

    @cached_property
    def known(self) -> Mapping[str, ScannedEntry]:
        """Path -> the entry of each file for which an equal entry means an equal content."""
        versions, made = self.written.versions, self.written.made | self._unsettled
        return {
            entry.path: entry
            for entry in self.tree.entries
            if entry.path in versions and entry.path not in made
        }

    @cached_property
    def _unsettled(self) -> frozenset[str]:
        """The files that may have changed after they were read, within one second."""
        since = (self.scanned_at - _COARSE_SECONDS) * _SECOND
        return frozenset(
            entry.path
            for entry in self.tree.entries
            if entry.stamp[2] > since and entry.stamp[2] % _SECOND == 0
        )


class WholeSnapshotNeeded(Exception):
    """A layer would be too large, or cannot express the changes."""


@dataclass(frozen=True)
class Delta:
    """The changes since a whole snapshot."""

    files: tuple[ChangedFile, ...]
    """Sorted by path."""
    contents: dict[str, bytes]
    """SHA-256 -> content, of all files and symlinks that are not deleted."""
    omitted: Omitted


def changes_since(base: Base, root: Path, tree: Tree) -> Delta:
    """Read the files that have changed since a whole snapshot.

    Args:
        base: The snapshot.
        root: The folder.
        tree: What `scan` returned for it now.

    Raises:
        WholeSnapshotNeeded: A layer would be too large, or cannot express the changes.
    """
    if base.describes(tree):
        return Delta((), {}, base.written.omitted)
    versions = base.written.versions
    size = sum(version.size for version in versions.values())
    max_bytes = min(MAX_BYTES, max(SMALL_BYTES, size // _SHARE))
    max_paths = min(MAX_PATHS, max(SMALL_PATHS, len(versions) // _SHARE))
    changed = sum(1 for entry in tree.entries if base.known.get(entry.path) != entry)
    if changed + max(0, len(base.tree.entries) - len(tree.entries)) > max_paths:
        raise WholeSnapshotNeeded
    reading = _Reading(base)
    contents = Contents(root, tree, max_bytes, reading.take, base.known)
    try:
        contents.read()
    except TooLarge as error:
        raise WholeSnapshotNeeded from error
    removed = _removed(versions, reading.present.union(contents.unread))
    files = [*reading.files, *(_changed(path, versions[path], None) for path in removed)]
    if len(files) > max_paths:
        raise WholeSnapshotNeeded
    _check_paths(files)
    return Delta(
        tuple(sorted(files, key=lambda file: file.path)), reading.contents, contents.omitted
    )


@dataclass
class _Reading:
    base: Base
    present: set[str] = field(default_factory=set)
    """The paths that were read."""
    files: list[ChangedFile] = field(default_factory=list)
    contents: dict[str, bytes] = field(default_factory=dict)

    def take(self, member: Member) -> None:
        """Read the folder's entry at a path; keep it if it differs from the snapshot."""
        content = member.content.read()
        digest = None if member.kind == "directory" else hashlib.sha256(content).digest()
        after = StoredVersion(member.kind, member.mode, member.size, digest)
        before = self.base.written.versions.get(member.path)
        self.present.add(member.path)
        if after == before:
            return
        if before and "directory" in {before.kind, after.kind}:
            raise WholeSnapshotNeeded  # a layer has no form for a folder's mode or another kind
        self.files.append(_changed(member.path, before, after))
        if digest is not None:
            self.contents[digest.hex()] = content


def _removed(before: Mapping[str, StoredVersion], present: set[str]) -> set[str]:
    """Return the paths that a layer removes; a folder goes with its last file.

    Raises:
        WholeSnapshotNeeded: A folder has lost its last file and is still there.
    """
    gone = before.keys() - present
    if not gone:
        return set()
    emptied = _list_folders(gone) & present
    if emptied and emptied - _list_folders(present):
        raise WholeSnapshotNeeded
    return gone - _list_folders(before)


def _list_folders(paths: Iterable[str]) -> set[str]:
    return {path.rpartition("/")[0] for path in paths}


def _check_paths(files: Iterable[ChangedFile]) -> None:
    """Refuse paths that a layer may not have."""
    if any(file.path.count("/") >= _MAX_NAMES for file in files):
        raise WholeSnapshotNeeded


def _changed(path: str, before: StoredVersion | None, after: StoredVersion | None) -> ChangedFile:
    if before is None:
        kind = ChangeKind.ADDED
    elif after is None:
        kind = ChangeKind.DELETED
    else:
        is_same = (before.kind, before.sha256) == (after.kind, after.sha256)
        kind = ChangeKind.MODE if is_same else ChangeKind.MODIFIED
    return ChangedFile(
        path=path_text(path),
        change=kind,
        size_bytes=after.size if after else 0,
        before=before and _file_version(before),
        after=after and _file_version(after),
    )


def _file_version(version: StoredVersion) -> FileVersion:
    return FileVersion(
        kind=version.kind,
        mode=version.mode,
        sha256=None if version.sha256 is None else version.sha256.hex(),
        size_bytes=version.size,
    )
