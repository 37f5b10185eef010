"""The files that one child works on, and what becomes of its changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from pydantic import JsonValue

from fanout.orchestrator.deep_agent.backends.local_shell import LocalShellBackend
from fanout.orchestrator.deep_agent.backends.overlay import OverlayBackend, StagedFile
from fanout.orchestrator.deep_agent.backends.protocol import Backend
from fanout.orchestrator.deep_agent.delegation.apply_changes import (
    AppliedChanges,
    PathLock,
    apply_changes,
)
from fanout.orchestrator.deep_agent.delegation.children.folder_copy import Marks, marks_of
from fanout.orchestrator.deep_agent.delegation.children.shell_overlay import ShellOverlay
from fanout.orchestrator.path_text import os_path

MAX_WATCHED_FILES = 200_000
"""In a folder on which a child works directly: a second for comparing them."""

MAX_NAMED = 5
"""Of the paths that are not taken over: enough to see what they are."""


class ChildFiles(Protocol):
    """The files of one child."""

    @property
    def backend(self) -> Backend:
        """What the child's tools work on."""

    @property
    def note(self) -> str | None:
        """What its parent has to know about the files if it succeeds."""

    @property
    def note_on_failure(self) -> str | None:
        """What its parent has to know about the files if it fails."""

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Return a context in which the child may work; what is temporary is removed after it."""

    def dump(self) -> JsonValue:
        """Return the changes so far as JSON, for `load` in another process."""

    def load(self, dumped: Mapping[str, Any]) -> None:
        """Go on with the changes that `dump` returned."""

    async def finish(self) -> AppliedChanges:
        """Put the changes into the parent's files, and return what was changed.

        Raises:
            ToolMistake: They are too many; none was put there.
        """

    async def left_behind(self) -> AppliedChanges:
        """Return what a child that failed has changed in its parent's files."""


class StagedFiles:
    """Changes that are merged into the parent's files when the child has succeeded.

    Args:
        files: The parent's files.
        lock: Held while one of them is compared and written.
    """

    note: str | None = None
    note_on_failure: str | None = "None of its changes to files were kept."

    def __init__(self, files: Backend, lock: PathLock) -> None:
        self._files = files
        self._lock = lock
        self._overlay = OverlayBackend(files)

    @property
    def backend(self) -> Backend:
        """See `ChildFiles.backend`."""
        return self._overlay

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """See `ChildFiles.opened`."""
        yield

    def dump(self) -> JsonValue:
        """See `ChildFiles.dump`."""
        return self._overlay.dump()

    def load(self, dumped: Mapping[str, Any]) -> None:
        """See `ChildFiles.load`."""
        self._overlay.load(dumped)

    async def finish(self) -> AppliedChanges:
        """See `ChildFiles.finish`."""
        return await apply_changes(self._overlay, self._files, self._lock)

    async def left_behind(self) -> AppliedChanges:
        """See `ChildFiles.left_behind`."""
        return AppliedChanges()


class OwnFiles(StagedFiles):
    """For an agent that was made elsewhere: its tools have files of their own."""

    note = "It works with tools of its own: what they changed is not listed here."
    note_on_failure = note


class StagedShellFiles(StagedFiles):
    """As `StagedFiles`, for a child with a shell: its commands run in a copy.

    Args:
        files: The parent's files.
        lock: Held while one of them is compared and written.
    """

    def __init__(self, files: LocalShellBackend, lock: PathLock) -> None:
        super().__init__(files, lock)
        self._overlay: ShellOverlay = ShellOverlay(files)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """See `ChildFiles.opened`."""
        try:
            yield
        finally:
            await self._overlay.close()

    async def finish(self) -> AppliedChanges:
        """See `ChildFiles.finish`."""
        await self._overlay.take_over()  # what ran in the background has gone on
        done = await super().finish()
        if left := sorted(self._overlay.left_out):
            more = f" and {len(left) - MAX_NAMED} more" if len(left) > MAX_NAMED else ""
            self.note = (
                "Ignored files and links that its commands made were not taken over: "
                f"{', '.join(left[:MAX_NAMED])}{more}."
            )
        return done


class DirectFiles:
    """The parent's own files, for a child with a shell where no copy can be made.

    One such child works at a time, because its commands would overwrite what others do.

    Args:
        files: The parent's files.
        turn: Held while the child works.
    """

    note = "It worked directly on your files."
    note_on_failure = (
        "It worked directly on your files: what it changed before it failed is still there."
    )

    def __init__(self, files: Backend, turn: asyncio.Semaphore) -> None:
        self._files = files
        self._turn = turn
        self._before: Marks | None = None

    @property
    def backend(self) -> Backend:
        """See `ChildFiles.backend`."""
        return self._files

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """See `ChildFiles.opened`."""
        async with self._turn:
            self._before = await self._marks()
            yield

    def dump(self) -> JsonValue:
        """See `ChildFiles.dump`; what was changed before a question is not listed after it."""
        return {}

    def load(self, dumped: Mapping[str, Any]) -> None:
        """See `ChildFiles.load`."""

    async def finish(self) -> AppliedChanges:
        """See `ChildFiles.finish`."""
        return await self.left_behind()

    async def left_behind(self) -> AppliedChanges:
        """See `ChildFiles.left_behind`."""
        before, now = self._before, await self._marks()
        if before is None or now is None:
            self.note = "It worked directly on your files; what it changed is not listed here."
            return AppliedChanges()
        root = Path(os_path(self._files.search_root))
        changed = sorted(
            path for path in before.keys() | now.keys() if before.get(path) != now.get(path)
        )
        return AppliedChanges(
            [
                StagedFile(
                    str(root / path),
                    b"" if path in before else None,
                    b"" if path in now else None,
                )
                for path in changed
            ]
        )

    async def _marks(self) -> Marks | None:
        if not isinstance(self._files, LocalShellBackend):
            return None
        root = Path(os_path(self._files.search_root))
        return await asyncio.to_thread(marks_of, root, MAX_WATCHED_FILES)
