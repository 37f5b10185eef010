"""What a job starts from: a snapshot and layers on top of it, as both providers unpack them."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import tarfile
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fanout.orchestrator.jobs.changes import (
    ChangeBundle,
    Changes,
    FileVersion,
    MalformedBundle,
    NewerBundle,
)
from fanout.orchestrator.jobs.failures import NotUnderstood
from fanout.orchestrator.path_text import os_path
from fanout.orchestrator.workspace.snapshots.archive import ARCHIVE_MTIME

from .errors import SnapshotUnusable
from .inside.snapshots import EMPTY_SNAPSHOT
from .protocol import SnapshotSource


@dataclass(frozen=True)
class Element:
    """One element of a chain."""

    id: str
    """Identifies it with all that is below it: a layer has another one on another snapshot."""
    blob: str | None
    """The archive of a snapshot, or the change bundle of a layer; None: an empty snapshot."""
    is_layer: bool

    def __str__(self) -> str:
        """Return its name for people."""
        return f"{'layer' if self.is_layer else 'snapshot'} {(self.blob or self.id)[:12]}"


def read_chain(snapshot: str | None, layers: Sequence[str]) -> list[Element]:
    """Return the elements from which a job starts, the snapshot first.

    Args:
        snapshot: its blob id; None: an empty one.
        layers: the blob ids of the layers, in order.
    """
    chain = [Element(snapshot or EMPTY_SNAPSHOT, snapshot, is_layer=False)]
    for layer in layers:
        digest = hashlib.sha256(f"{chain[-1].id} {layer}".encode()).hexdigest()
        chain.append(Element(f"l{digest}", layer, is_layer=True))  # no blob has such an id
    return chain


@asynccontextmanager
async def element_archive(element: Element, source: SnapshotSource) -> AsyncIterator[Path]:
    """Fetch an element's archive, for the duration of a context.

    Raises:
        SnapshotUnusable: the layer is damaged.
        NotUnderstood: a newer release wrote it.
    """
    if element.blob is not None and not element.is_layer:
        yield await source(element.blob)
        return
    bundle = await source(element.blob) if element.blob else None
    archive = await asyncio.to_thread(_archived, bundle, element)
    try:
        yield archive
    finally:
        await asyncio.to_thread(archive.unlink)


def _archived(bundle: Path | None, element: Element) -> Path:
    """Write the archive of a layer, or of an empty snapshot, into a temporary file."""
    descriptor, name = tempfile.mkstemp(prefix="fanout-layer-", suffix=".tar")
    archive = Path(name)
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            if bundle is not None:
                with ChangeBundle.open(bundle) as opened:
                    _write_members(tar, opened)
    except BaseException as error:
        archive.unlink()
        if isinstance(error, NewerBundle):
            raise NotUnderstood(str(error)) from error
        if isinstance(error, MalformedBundle):
            raise SnapshotUnusable(f"The {element} cannot be used: {error}.") from error
        raise
    return archive


def _write_members(tar: tarfile.TarFile, bundle: ChangeBundle) -> None:
    """Write each path as it is afterwards; a removed one as an overlay marks it."""
    written = {file.path: file.after for file in bundle.changes.files if file.after is not None}
    for path in sorted(_removed(bundle.changes) - written.keys()):
        member = _member(path)
        member.type = tarfile.CHRTYPE
        tar.addfile(member)
    for path, version in sorted(written.items()):
        member, content = _member(path, version), bundle.content(version)
        if version.kind == "directory":
            member.type = tarfile.DIRTYPE
        elif version.kind == "symlink":
            member.type = tarfile.SYMTYPE
            member.linkname = content.decode("utf-8", "surrogateescape")
        else:
            member.size = len(content)
        tar.addfile(member, io.BytesIO(content) if member.isreg() else None)


def _removed(changes: Changes) -> set[str]:
    return {file.from_path or file.path for file in changes.files if file.before is not None}


def _member(path: str, version: FileVersion | None = None) -> tarfile.TarInfo:
    if "\0" in path:  # a tar would end its name there
        raise MalformedBundle("a path cannot exist")
    member = tarfile.TarInfo(os_path(path))
    member.mtime = ARCHIVE_MTIME
    if version is not None:
        member.mode = version.mode
    return member
