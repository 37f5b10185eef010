"""Both sides of a conflict, where an agent can read them: beside its workspace.

They lie in the sandbox's home, which is no part of the changes and does not outlive its container.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import JsonValue

from fanout.orchestrator.git.text_merge import is_text
from fanout.orchestrator.jobs.changes import ChangeBundle, ChangedFile, FileVersion, MalformedBundle
from fanout.orchestrator.jobs.failures import BlobMissing
from fanout.orchestrator.workspace.blobs import BlobStore
from fanout.workers.sandbox import WORKSPACE, Sandbox

FOLDER = "conflicts"
MAX_FILES = 50
"""Of one job: as many conflicts as one reads."""
MAX_FILE_BYTES = 1024**2
"""Larger ones are not texts that an agent compares."""
MAX_DIFF_CHARACTERS = 2_000
"""Of each file, in the result of a tool: the whole versions can be read."""

Sides = dict[str, JsonValue]
"""`diff` (of the other side, shortened) and the paths of `theirs` and `yours`, where they exist."""


class ConflictFiles:
    """Writes both sides for one attempt.

    Args:
        sandbox: The job's sandbox.
        blobs: Where the other side is stored.
    """

    def __init__(self, sandbox: Sandbox, blobs: BlobStore) -> None:
        self._sandbox = sandbox
        self._blobs = blobs

    async def write(self, job_id: str, changes: str, paths: Sequence[str]) -> Mapping[str, Sides]:
        """Write both sides of these paths, and return them by path.

        What cannot be written is left out: the changes are in their bundle all the same.

        Args:
            job_id: The job whose changes conflict; empty for those with which this one begins.
            changes: The blob of its change bundle.
            paths: The paths that conflict.

        Raises:
            SandboxFailure: The sandbox failed.
        """
        try:
            bundle = await self._blobs.fetch(changes)
            theirs = await asyncio.to_thread(lambda: [*_sides(bundle, set(paths[:MAX_FILES]))])
        except (BlobMissing, MalformedBundle):
            return {}
        return {one.path: await self._written(job_id, one, *sides) for one, *sides in theirs}

    async def _written(
        self, job_id: str, file: ChangedFile, before: bytes | None, after: bytes | None
    ) -> Sides:
        folder = "/".join(filter(None, (self._sandbox.home, FOLDER, job_id)))
        sides: Sides = {}
        if diff := _diff(file.path, before, after):
            sides["diff"] = diff
        with suppress(OSError):
            yours = await self._sandbox.read_bytes(f"{WORKSPACE}/{file.path}", MAX_FILE_BYTES)
            sides["yours"] = await self._write(f"{folder}/yours/{file.path}", yours)
        with suppress(OSError):
            if after is not None:
                sides["theirs"] = await self._write(f"{folder}/theirs/{file.path}", after)
        return sides

    async def _write(self, path: str, content: bytes) -> str:
        await self._sandbox.write_bytes(path, content)
        return path


def _sides(
    path: Path, wanted: set[str]
) -> Iterator[tuple[ChangedFile, bytes | None, bytes | None]]:
    with ChangeBundle.open(path) as bundle:
        for file in bundle.changes.files:
            if file.path in wanted:
                yield file, _content(bundle, file.before), _content(bundle, file.after)


def _content(bundle: ChangeBundle, version: FileVersion | None) -> bytes | None:
    if version is None or version.kind != "file" or version.size_bytes > MAX_FILE_BYTES:
        return None
    return bundle.content(version)


def _diff(path: str, before: bytes | None, after: bytes | None) -> str:
    if not all(is_text(one or b"") for one in (before, after)):
        return ""
    old, new = ((one or b"").decode(errors="replace").splitlines() for one in (before, after))
    text = "\n".join(difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", lineterm=""))
    return text if len(text) <= MAX_DIFF_CHARACTERS else text[:MAX_DIFF_CHARACTERS] + "\n…"
