"""The stored indexes: the files of a folder at its last whole snapshot, with their hashes.

A process that starts later reads only what has changed since. An index is a private file. One that
is damaged, that another user wrote, or that was written under other rules about omitted files is
ignored; then the next snapshot is stored as a whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
import time
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from ...jobs.changes import FileKind, SkippedFile
from ...private_files import create_private_file, make_private_folder
from .. import rooted, secret_files
from ..repositories import (
    configuration,
    git_data,
    repository,
    self_contained,
)
from . import archive, contents, git_view, scan
from .archive import StoredVersion, Written
from .contents import Omitted
from .delta import Base
from .scan import ScannedEntry, Tree

_KINDS: tuple[FileKind | None, ...] = (None, "file", "symlink", "directory")
"""The kinds of versions by number; None: the snapshot has no version of an entry."""

_NO_HASH = bytes(hashlib.sha256().digest_size)
"""The hash of a directory."""

_KEPT_SECONDS = 30 * 24 * 3600
"""The time after which an unchanged index is deleted: its snapshot has probably expired."""

_NO_VERSION = (None, 0, 0, None)
_HEAD = struct.Struct("=I")
"""The length of the head."""

_RULES = (
    archive,
    configuration,
    contents,
    git_data,
    git_view,
    repository,
    rooted,
    scan,
    secret_files,
    self_contained,
)
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
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                if os.fstat(descriptor).st_uid != os.geteuid():
                    return None
                content = memoryview(file.readall())
        except OSError:
            return None
        body = content[len(_NO_HASH) :]
        if content[: len(_NO_HASH)] != hashlib.sha256(body).digest():
            return None
        return _parsed(body, included)

    def save(self, root: Path, store: str, base: Base) -> None:
        """Replace the stored index; nothing is stored if the disk fails.

        Args:
            root: The folder.
            store: The URL of the blob store.
            base: The folder's last whole snapshot.
        """
        with suppress(OSError, OverflowError):  # a file's time may be beyond the year 2262
            make_private_folder(self._folder)
            self._remove_old()
            partial = self._folder / f"{uuid4().hex}.part"
            try:
                body = _packed(base)
                with create_private_file(partial) as file:
                    file.write(hashlib.sha256(body).digest() + body)
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
    """Return an identity of the rules about a snapshot's files: a digest of their code."""
    files = (Path(str(module.__file__)).read_bytes() for module in _RULES)
    return hashlib.sha256(b"".join([sys.byteorder.encode(), *files])).hexdigest()


class _Columns(NamedTuple):
    """The numbers of all entries and of their versions, each in an array of its own.

    An array is read at once: a list of entries as JSON takes five times as long.
    """

    modes: array[int]
    sizes: array[int]
    inodes: array[int]
    modified: array[int]
    changed: array[int]
    git_dirs: array[int]
    kinds: array[int]
    bits: array[int]
    lengths: array[int]


def _columns(*numbers: Iterable[int]) -> _Columns:
    """Return columns; their numbers have this machine's format, like the state folder."""
    return _Columns(*map(array, "IqQqqIBIq", numbers))


def _packed(base: Base) -> bytes:
    """Return an index: the length of its head, the head, the columns, and the hashes."""
    tree, written = base.tree, base.written
    git_dirs = [None, *sorted({entry.git_dir for entry in tree.entries if entry.git_dir})]
    numbers = {git_dir: number for number, git_dir in enumerate(git_dirs)}
    versions = [written.versions.get(entry.path, _NO_VERSION) for entry in tree.entries]
    skipped = (
        tree.skipped, tree.left_at_home, written.omitted.unreadable, written.omitted.left_at_home,
    )  # fmt: skip
    head = json.dumps(
        {
            "snapshot": base.snapshot,
            "scanned_at": base.scanned_at,
            "made": sorted(written.made),
            "skipped": [[[file.path, file.reason] for file in files] for files in skipped],
            "limits": tree.limits,
            "git_dirs": git_dirs,
            "paths": "\0".join(entry.path for entry in tree.entries),
            "count": len(tree.entries),
        },
        separators=(",", ":"),
    ).encode()
    entries = tree.entries
    columns = _columns(
        (entry.mode for entry in entries),
        (entry.size for entry in entries),
        (entry.stamp[0] for entry in entries),
        (entry.stamp[1] for entry in entries),
        (entry.stamp[2] for entry in entries),
        (numbers[entry.git_dir] for entry in entries),
        (_KINDS.index(version[0]) for version in versions),
        (version[1] for version in versions),
        (version[2] for version in versions),
    )
    arrays = [column.tobytes() for column in columns]
    hashes = [version[3] or _NO_HASH for version in versions]
    return b"".join((_HEAD.pack(len(head)), head, *arrays, *hashes))


def _parsed(body: memoryview, included: frozenset[str]) -> Base:
    (head_bytes,) = _HEAD.unpack_from(body)
    at = _HEAD.size + head_bytes
    head = json.loads(bytes(body[_HEAD.size : at]))
    count, git_dirs = head["count"], head["git_dirs"]
    paths = head["paths"].split("\0") if count else []
    columns = _columns(*repeat((), len(_Columns._fields)))
    for column in columns:
        column.frombytes(body[at : at + count * column.itemsize])
        at += count * column.itemsize
    stamps = zip(columns.inodes, columns.modified, columns.changed, strict=True)
    owners = map(git_dirs.__getitem__, columns.git_dirs)
    entries = tuple(map(ScannedEntry, paths, columns.modes, columns.sizes, stamps, owners))
    skipped, left_at_home, unreadable, secret = (
        [SkippedFile(path=path, reason=reason) for path, reason in files]
        for files in head["skipped"]
    )
    hashes = bytes(body[at:])
    return Base(
        head["snapshot"],
        Tree(entries, tuple(skipped), tuple(left_at_home), included, tuple(head["limits"])),
        Written(
            Omitted(unreadable, secret),
            frozenset(head["made"]),
            lambda: _versions(paths, columns, hashes),
        ),
        head["scanned_at"],
    )


def _versions(paths: Sequence[str], columns: _Columns, hashes: bytes) -> dict[str, StoredVersion]:
    versions = {}
    rows = zip(paths, columns.kinds, columns.bits, columns.lengths, strict=True)
    for number, (path, kind_number, bits, length) in enumerate(rows):
        kind = _KINDS[kind_number]
        if kind is not None:
            at = number * len(_NO_HASH)
            sha256 = None if kind == "directory" else hashes[at : at + len(_NO_HASH)]
            versions[path] = StoredVersion(kind, bits, length, sha256)
    return versions
