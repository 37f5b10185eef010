"""Combines a snapshot with a job's changes: children and continuations of the job start from it.

It is made from the job's own snapshot and its change bundle, without reading the sandbox. Files
that a bundle does not contain are unchanged: the contents of `.git`, ignored files, files over the
size limit.
"""

from __future__ import annotations

import asyncio
import io
import posixpath
import tarfile
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import IO

from orchestrator.jobs.changes import ChangeBundle, FileVersion
from orchestrator.workspace.archive import ARCHIVE_MTIME
from orchestrator.workspace.blobs import BlobStore


async def store(blobs: BlobStore, snapshot: str | None, changes: Path | IO[bytes]) -> str:
    """Store a snapshot with a job's changes applied, and return the blob.

    Without changes it is the same snapshot, with a new time.

    Args:
        blobs: Where the snapshot is, and where the new one is stored.
        snapshot: The snapshot that the job started from; None: an empty one.
        changes: The job's change bundle.

    Raises:
        BlobMissing: The snapshot is missing.
        MalformedBundle: The bundle cannot be read.
        JobFailure: The new snapshot cannot be stored.
    """
    base = await blobs.fetch(snapshot) if snapshot else None
    is_unchanged = await asyncio.to_thread(_is_empty, changes)
    if snapshot and is_unchanged:
        await blobs.keep(snapshot)
        return snapshot

    def write_changed(sink: IO[bytes]) -> None:
        with ChangeBundle.open(_rewound(changes)) as bundle:
            write(sink, base, bundle)

    stored, _ = await blobs.put_written(write_changed)
    return stored


def write(sink: IO[bytes], snapshot: Path | None, bundle: ChangeBundle) -> None:
    """Write the archive of a snapshot with a job's changes; blocks.

    Args:
        sink: The stream to write to.
        snapshot: The archive of the snapshot that the job started from; None: an empty one.
        bundle: The job's changes.

    Raises:
        MalformedBundle: The bundle lacks a content.
    """
    written = {file.path: file.after for file in bundle.changes.files if file.after is not None}
    removed = {
        file.from_path or file.path for file in bundle.changes.files if file.before is not None
    }
    with (
        tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as new,
        nullcontext() if snapshot is None else tarfile.open(snapshot, mode="r:") as old,
    ):
        kept = _kept({member.name: member for member in old or ()}, removed, written)
        for name in sorted({*kept, *written}):  # in this order, as `archive.write` does
            if name in written:
                new.addfile(*_member(name, written[name], bundle))
            elif old is not None:
                member = kept[name]
                new.addfile(member, old.extractfile(member) if member.isreg() else None)


def _kept(
    members: dict[str, tarfile.TarInfo], removed: set[str], written: dict[str, FileVersion]
) -> dict[str, tarfile.TarInfo]:
    """Return the unchanged members, without the directories that became empty."""
    held = _folders(members)
    left = {
        name: member
        for name, member in members.items()
        if name not in removed and name not in written
    }
    holding = _folders([*(name for name in left if not left[name].isdir()), *written])
    holding |= _folders(name for name in left if left[name].isdir() and name not in held)
    return {
        name: member
        for name, member in left.items()
        if not member.isdir() or name in holding or name not in held
    }


def _folders(paths: Iterable[str]) -> set[str]:
    """Return all directories above these paths."""
    above: set[str] = set()
    for path in paths:
        folder = posixpath.dirname(path)
        while folder and folder not in above:
            above.add(folder)
            folder = posixpath.dirname(folder)
    return above


def _member(
    name: str, version: FileVersion, bundle: ChangeBundle
) -> tuple[tarfile.TarInfo, IO[bytes]]:
    """Return a changed path as a member and its content."""
    info = tarfile.TarInfo(name)
    info.mode = version.mode
    info.mtime = ARCHIVE_MTIME
    content = bundle.content(version)
    if version.kind == "directory":
        info.type = tarfile.DIRTYPE
    elif version.kind == "symlink":
        info.type = tarfile.SYMTYPE
        info.linkname = content.decode("utf-8", "surrogateescape")
    else:
        info.size = len(content)
    return info, io.BytesIO(content)


def _is_empty(changes: Path | IO[bytes]) -> bool:
    with ChangeBundle.open(_rewound(changes)) as bundle:
        return not bundle.changes.files


def _rewound(changes: Path | IO[bytes]) -> Path | IO[bytes]:
    if not isinstance(changes, Path):
        changes.seek(0)
    return changes
