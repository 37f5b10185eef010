"""The stored indexes: which files a folder had at its last whole snapshot, and their hashes.

A process that starts later reads only what has changed since. An index is a private file. One that
is damaged, that another user wrote, or that was written under other rules about what stays at home
does not count: then the next snapshot is stored as a whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from fanout.orchestrator.jobs.changes import SkippedFile
from fanout.orchestrator.private_files import create_private_file, make_private_folder
from fanout.orchestrator.workspace import rooted, secret_files
from fanout.orchestrator.workspace.repositories import configuration, git_data, repository
from fanout.orchestrator.workspace.snapshots import archive, contents, scan
from fanout.orchestrator.workspace.snapshots.archive import Version, Written
from fanout.orchestrator.workspace.snapshots.base import Base
from fanout.orchestrator.workspace.snapshots.contents import Omitted
from fanout.orchestrator.workspace.snapshots.scan import Entry, Tree

_ENTRIES_A_LINE = 1000
"""Parsed at once: so many need about a megabyte of memory."""

_KEPT_SECONDS = 30 * 24 * 3600
"""An index that nobody wrote anew for so long is deleted: its snapshot has probably expired."""

_RULES = (archive, configuration, contents, git_data, repository, rooted, scan, secret_files)
"""The modules that decide what a snapshot has."""


class SnapshotIndexes:
    """The indexes in a private folder.

    Args:
        folder: The folder, which is created when it is needed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, root: Path, store: str, included: frozenset[str]) -> Base | None:
        """Return the last whole snapshot of a folder; None if it is not known.

        Args:
            root: The folder.
            store: The URL of the blob store.
            included: The files that a person asked for by name.
        """
        try:
            descriptor = os.open(
                self._path(root, store, included), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            )
            with os.fdopen(descriptor, "rb") as file:
                if os.fstat(descriptor).st_uid != os.geteuid():
                    return None
                lines = _HashedLines(file)
                base = _parsed(lines, included)
        except (OSError, ValueError, LookupError, TypeError):
            return None
        return base if lines.are_whole else None

    def save(self, root: Path, store: str, base: Base) -> None:
        """Store an index in place of the one before; nothing is stored if the disk refuses it.

        Args:
            root: The folder.
            store: The URL of the blob store.
            base: The folder's last whole snapshot.
        """
        with suppress(OSError):
            make_private_folder(self._folder)
            self._remove_old()
            partial = self._folder / f"{uuid4().hex}.part"
            try:
                digest = hashlib.sha256()
                with create_private_file(partial) as file:
                    for line in _lines(base):
                        digest.update(line)
                        file.write(line)
                    file.write(digest.hexdigest().encode())
                partial.rename(self._path(root, store, base.tree.included))
            finally:
                partial.unlink(missing_ok=True)

    def _path(self, root: Path, store: str, included: frozenset[str]) -> Path:
        key = json.dumps([_rules(), str(root.resolve()), store, sorted(included)])
        return self._folder / hashlib.sha256(key.encode()).hexdigest()

    def _remove_old(self) -> None:
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):  # another process removes them too
                if path.stat().st_mtime < time.time() - _KEPT_SECONDS:
                    path.unlink()


@cache
def _rules() -> str:
    """Return an identity of the rules about what a snapshot has: the code that they are."""
    files = (Path(str(module.__file__)).read_bytes() for module in _RULES)
    return hashlib.sha256(b"".join(files)).hexdigest()


class _HashedLines:
    """The lines of a file without its last one, which is their hash."""

    def __init__(self, file: Iterable[bytes]) -> None:
        self._file = file
        self.are_whole = False

    def __iter__(self) -> Iterator[bytes]:
        digest = hashlib.sha256()
        for line in self._file:
            if not line.endswith(b"\n"):
                self.are_whole = line == digest.hexdigest().encode()
                return
            digest.update(line)
            yield line


def _lines(base: Base) -> Iterator[bytes]:
    """Yield an index: what holds for the whole snapshot, then lists of entries."""
    tree, written = base.tree, base.written
    yield _line(
        {
            "snapshot": base.snapshot,
            "scanned_at": base.scanned_at,
            "made": sorted(written.made),
            "skipped": [
                [[file.path, file.reason] for file in files]
                for files in (
                    tree.skipped,
                    tree.left_at_home,
                    written.omitted.unreadable,
                    written.omitted.left_at_home,
                )
            ],
        }
    )
    for start in range(0, len(tree.entries), _ENTRIES_A_LINE):
        entries = tree.entries[start : start + _ENTRIES_A_LINE]
        yield _line([_row(entry, written.versions.get(entry.path)) for entry in entries])


def _row(entry: Entry, version: Version | None) -> list[Any]:
    row: list[Any] = [entry.path, entry.mode, entry.size, *entry.stamp, entry.git_dir]
    if version is not None:
        sha256 = version.sha256 and version.sha256.hex()
        row += [version.kind, version.mode, version.size, sha256]
    return row


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _parsed(file: Iterable[bytes], included: frozenset[str]) -> Base:
    lines = iter(file)
    head = json.loads(next(lines, b""))
    entries: list[Entry] = []
    versions: dict[str, Version] = {}
    for line in lines:
        for path, mode, size, inode, modified, changed, git_dir, *version in json.loads(line):
            entries.append(Entry(path, mode, size, (inode, modified, changed), git_dir))
            if version:
                kind, bits, length, sha256 = version
                versions[path] = Version(kind, bits, length, sha256 and bytes.fromhex(sha256))
    skipped, left_at_home, unreadable, secret = (
        [SkippedFile(path=path, reason=reason) for path, reason in files]
        for files in head["skipped"]
    )
    return Base(
        head["snapshot"],
        Tree(tuple(entries), tuple(skipped), tuple(left_at_home), included),
        Written(Omitted(unreadable, secret), versions, frozenset(head["made"])),
        head["scanned_at"],
    )
