"""Reads several files of what a job starts from, without a sandbox: those that a set-up depends on.

Neither an archive nor a layer is trusted: nothing is unpacked, and no link is followed.
"""

from __future__ import annotations

import asyncio
import hashlib
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fanout.orchestrator.jobs.changes import ChangeBundle, MalformedBundle, NewerBundle
from fanout.orchestrator.jobs.failures import NotUnderstood
from fanout.orchestrator.jobs.spec import StartFiles
from fanout.orchestrator.path_text import os_path
from fanout.orchestrator.workspace.blobs import BlobStore

from ..sandbox import SnapshotUnusable

MAX_CONTENT_BYTES = 64 * 1024
"""The largest file whose content is kept: one more byte is kept of a larger one."""
MAX_KEPT = 200
"""The answers that are remembered: a worker meets some hundred workspaces in its life."""
_PIECE_BYTES = 1 << 20
"""Read of a large file at once: enough to be quick, and little memory."""


@dataclass(frozen=True)
class StartFile:
    """What is at a path."""

    kind: Literal["file", "directory", "symlink", "other"]
    digest: str
    """The SHA-256 of a file's content or of a link's target; else empty."""
    content: bytes = b""
    """The beginning of a file: all of it, if it is not too large."""


Found = Mapping[str, StartFile | None]
"""What is at some paths; None: nothing is."""


class StartFilesReader:
    """Reads files of what jobs start from; the jobs of a worker share the answers.

    Args:
        blobs: Where snapshots and layers are stored.
    """

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._found: dict[tuple[str, frozenset[str]], asyncio.Task[Found]] = {}

    def has_read(self, blob: str) -> bool:
        """Return whether something of a snapshot or a layer was read already."""
        return any(known == blob for known, _ in self._found)

    async def read(self, start: StartFiles, paths: frozenset[str]) -> Found:
        """Return what is at these paths, which are relative to the workspace.

        Raises:
            BlobMissing: A snapshot or a layer is not stored any more.
            NotUnderstood: A newer release wrote a layer.
            SnapshotUnusable: It is damaged.
        """
        found: dict[str, StartFile | None] = dict.fromkeys(paths)
        if start.snapshot:
            found |= await self._of_blob(start.snapshot, paths, _in_archive)
        for layer in start.layers:
            found |= await self._of_blob(layer, paths, _in_layer)
        return found

    async def _of_blob(
        self, blob: str, paths: frozenset[str], look: Callable[[Path, frozenset[str]], Found]
    ) -> Found:
        key = blob, paths
        if key not in self._found:
            while len(self._found) >= MAX_KEPT:
                del self._found[next(iter(self._found))]
            self._found[key] = asyncio.create_task(self._look(blob, paths, look))
        try:
            return await asyncio.shield(self._found[key])
        except Exception:
            self._found.pop(key, None)  # the store may answer the next job
            raise

    async def _look(
        self, blob: str, paths: frozenset[str], look: Callable[[Path, frozenset[str]], Found]
    ) -> Found:
        archive = await self._blobs.fetch(blob)
        try:
            return await asyncio.to_thread(look, archive, paths)
        except NewerBundle as error:
            raise NotUnderstood(str(error)) from error
        except (MalformedBundle, tarfile.TarError, EOFError) as error:
            raise SnapshotUnusable("The files that the job starts from are damaged.") from error


def _in_archive(archive: Path, paths: frozenset[str]) -> Found:
    """Return what an archive has at some of these paths."""
    wanted = {os_path(path): path for path in paths}
    found: dict[str, StartFile | None] = {}
    with tarfile.open(archive) as opened:
        for member in opened:
            path = wanted.get(member.name)
            if path is None:
                continue
            if member.issym():
                found[path] = StartFile(
                    "symlink", _sha256(member.linkname.encode(errors="replace"))
                )
            elif member.isdir():
                found[path] = StartFile("directory", "")
            elif member.isreg():
                found[path] = _read_member(opened, member)
            else:
                found[path] = StartFile("other", "")
    return found


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> StartFile:
    content = archive.extractfile(member)
    if content is None:
        return StartFile("other", "")
    first = content.read(MAX_CONTENT_BYTES + 1)
    digest = hashlib.sha256(first)
    while piece := content.read(_PIECE_BYTES):
        digest.update(piece)
    return StartFile("file", digest.hexdigest(), first)


def _in_layer(bundle: Path, paths: frozenset[str]) -> Found:
    """Return what a layer changes at some of these paths."""
    found: dict[str, StartFile | None] = {}
    with ChangeBundle.open(bundle) as opened:
        for file in opened.changes.files:
            if file.from_path in paths:
                found.setdefault(file.from_path, None)
            if file.path not in paths:
                continue
            after = file.after
            if after is None:
                found[file.path] = None
            elif after.kind == "file":
                content = opened.content(after)
                kept = content[: MAX_CONTENT_BYTES + 1]
                found[file.path] = StartFile("file", _sha256(content), kept)
            else:
                target = opened.content(after) if after.kind == "symlink" else b""
                found[file.path] = StartFile(after.kind, _sha256(target) if target else "")
    return found


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
