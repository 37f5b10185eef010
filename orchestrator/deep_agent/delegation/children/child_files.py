"""The files that one child works on, and what becomes of its changes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Protocol

from pydantic import JsonValue

from fanout.orchestrator.deep_agent.backends.overlay import OverlayBackend
from fanout.orchestrator.deep_agent.backends.protocol import Backend
from fanout.orchestrator.deep_agent.delegation.apply_changes import (
    AppliedChanges,
    PathLock,
    apply_changes,
)


class ChildFiles(Protocol):
    """The files of one child."""

    note: str | None
    """What its parent has to know if it succeeds."""
    note_on_failure: str | None

    @property
    def backend(self) -> Backend:
        """What the child's tools work on."""

    def opened(self) -> AbstractAsyncContextManager[object]:
        """Return a context in which the child may work; what is temporary is removed after it."""

    def dump(self) -> JsonValue:
        """Return the changes so far as JSON, for `load` in another process."""

    def load(self, dumped: Mapping[str, Any]) -> None:
        """Go on with the changes that `dump` returned."""

    async def finish(self) -> AppliedChanges:
        """Put the changes into the parent's files, and return what was changed."""


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

    def opened(self) -> AbstractAsyncContextManager[object]:
        """See `ChildFiles.opened`."""
        return nullcontext()

    def dump(self) -> JsonValue:
        """See `ChildFiles.dump`."""
        return self._overlay.dump()

    def load(self, dumped: Mapping[str, Any]) -> None:
        """See `ChildFiles.load`."""
        self._overlay.load(dumped)

    async def finish(self) -> AppliedChanges:
        """See `ChildFiles.finish`."""
        return await apply_changes(self._overlay, self._files, self._lock)


class OwnFiles(StagedFiles):
    """For an agent that was made elsewhere: its tools have files of their own."""

    note = "It works with tools of its own: what they changed is not listed here."
    note_on_failure = note
