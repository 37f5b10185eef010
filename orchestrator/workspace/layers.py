"""Layers: the changes of a job as a blob, on top of which its children and continuations start.

A layer is a change bundle (`orchestrator.jobs.changes`) with only the contents after the changes,
without a patch and renames. Equal changes result in equal blobs. The snapshot below is not read to
make one; it stays unchanged, and so do the parts that a bundle does not contain: the contents of
`.git`, ignored files, files over the size limit. A directory that loses its last file disappears.
"""

from __future__ import annotations

import asyncio
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from ..jobs.changes import (
    MAX_DOCUMENT_BYTES,
    MAX_MEMBERS,
    ChangeBundle,
    ChangedFile,
    ChangeKind,
    Changes,
    FileVersion,
)
from ..jobs.failures import InvalidJob
from ..jobs.spec import MAX_LAYERS, StartFiles
from .blobs import BlobStore
from .snapshots.archive import add_content

_OTHER_MEMBERS = 2
"""The members of a layer besides contents: the list, and the empty patch of an older release."""


async def start_after(
    blobs: BlobStore, start: StartFiles, changes: Path | IO[bytes] | None
) -> StartFiles:
    """Return what a job starts from that continues the files of another.

    The snapshot is not read. All blobs have a new time afterwards, see `BlobStore.keep`.

    Args:
        blobs: Where the layers are stored.
        start: What the other job started from.
        changes: Its change bundle; None: it changed nothing.

    Raises:
        BlobMissing: A blob that it started from is missing.
        MalformedBundle: The bundle cannot be read.
        InvalidJob: The layers would be too many, and too large to be folded.
        JobFailure: The new layer cannot be stored.
    """
    if changes is not None and await asyncio.to_thread(_is_empty, changes):
        changes = None
    for blob in start.blobs():
        await blobs.keep(blob)
    if changes is None:
        return start
    layer, _ = await blobs.put_written(lambda sink: write(sink, [changes]))
    layers = (*start.layers, layer)
    if len(layers) > MAX_LAYERS:
        layers = await folded(blobs, layers)
    return StartFiles(start.snapshot, layers)


async def folded(blobs: BlobStore, layers: Sequence[str]) -> tuple[str, ...]:
    """Return fewer layers with the same effect: one, unless that would be too large for a bundle.

    All are folded at once, so that it happens once in `MAX_LAYERS` continuations.

    Raises:
        BlobMissing: A layer is missing.
        MalformedBundle: A layer cannot be read.
        InvalidJob: Too many are left.
        JobFailure: A new layer cannot be stored.
    """
    files = [await blobs.fetch(layer) for layer in layers]
    groups = await asyncio.to_thread(_groups, files)
    if len(groups) > MAX_LAYERS:
        raise InvalidJob(
            "The jobs before this one changed more files than layers can carry: apply their "
            "changes to the workspace, and submit the task as a new job that starts from it."
        )
    made = []
    for group in groups:
        one, _ = await blobs.put_written(partial(write, bundles=[files[each] for each in group]))
        made.append(one)
    return tuple(made)


def write(sink: IO[bytes], bundles: Sequence[Path | IO[bytes]]) -> None:
    """Write one layer with the effect of change bundles that follow one another; blocks.

    Args:
        sink: The stream to write to.
        bundles: The bundles, each against the result of the one before.

    Raises:
        MalformedBundle: A bundle cannot be read, or lacks a content.
    """
    with ExitStack() as stack:
        opened = [stack.enter_context(ChangeBundle.open(_rewound(one))) for one in bundles]
        paths = composed(opened)
        files = tuple(_entry(path, paths[path]) for path in sorted(paths))
        contents: dict[str, tuple[ChangeBundle, FileVersion]] = {}
        for one in paths.values():
            if one.after is not None and one.after.sha256 is not None:
                contents[one.after.sha256] = (one.bundle, one.after)
        ordered = sorted(contents.items(), key=lambda item: item[0])
        write_layer(sink, files, ((sha256, one.content(as_)) for sha256, (one, as_) in ordered))


def write_layer(
    sink: IO[bytes], files: tuple[ChangedFile, ...], contents: Iterable[tuple[str, bytes]]
) -> None:
    """Write a layer; blocks.

    Args:
        sink: The stream to write to.
        files: The changes, sorted by path.
        contents: The SHA-256 and the content of each file and symlink afterwards, sorted.
    """
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.GNU_FORMAT) as archive:
        add_content(archive, "changes.json", Changes(files=files).model_dump_json().encode())
        for sha256, content in contents:
            add_content(archive, f"objects/{sha256}", content)


class PathChange(NamedTuple):
    """The change of one path by several bundles."""

    before: FileVersion | None
    """The version before the first bundle."""
    after: FileVersion | None
    """The version after the last bundle."""
    bundle: ChangeBundle
    """The last bundle, which has the content of `after`."""


def composed(bundles: Sequence[ChangeBundle]) -> dict[str, PathChange]:
    """Return the changed paths of bundles that follow one another, each with its change by all."""
    paths: dict[str, PathChange] = {}
    for bundle in bundles:
        for path, before, after in _single_changes(bundle.changes):
            first = paths[path].before if path in paths else before
            paths[path] = PathChange(first, after, bundle)
    # what was added and removed again is unknown to the snapshot below
    return {path: one for path, one in paths.items() if one.before or one.after}


def _single_changes(
    changes: Changes,
) -> Iterator[tuple[str, FileVersion | None, FileVersion | None]]:
    """Yield each changed path with its versions; a rename is a removal and an addition."""
    for file in changes.files:
        if file.from_path is None:
            yield file.path, file.before, file.after
        else:
            yield file.from_path, file.before, None
            yield file.path, None, file.after


def _entry(path: str, change: PathChange) -> ChangedFile:
    before, after = change.before, change.after
    if before is None:
        kind = ChangeKind.ADDED
    elif after is None:
        kind = ChangeKind.DELETED
    elif (before.kind, before.sha256) == (after.kind, after.sha256):
        kind = ChangeKind.MODE
    else:
        kind = ChangeKind.MODIFIED
    size = after.size_bytes if after else 0
    return ChangedFile(path=path, change=kind, size_bytes=size, before=before, after=after)


def _groups(files: Sequence[Path]) -> list[list[int]]:
    """Divide layers into groups of neighbours, of which each fits into one bundle."""
    groups: list[list[int]] = []
    members = document_bytes = 0
    for number, file in enumerate(files):
        with ChangeBundle.open(file) as bundle:
            more = len(bundle.changes.files)
            more_bytes = len(bundle.changes.model_dump_json())
        members, document_bytes = members + more, document_bytes + more_bytes
        fits = members + _OTHER_MEMBERS <= MAX_MEMBERS and document_bytes <= MAX_DOCUMENT_BYTES
        if groups and fits:
            groups[-1].append(number)
        else:
            groups.append([number])
            members, document_bytes = more, more_bytes
    return groups


def _is_empty(changes: Path | IO[bytes]) -> bool:
    with ChangeBundle.open(_rewound(changes)) as bundle:
        return not bundle.changes.files


def _rewound(changes: Path | IO[bytes]) -> Path | IO[bytes]:
    if not isinstance(changes, Path):
        changes.seek(0)
    return changes
