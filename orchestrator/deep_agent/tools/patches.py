"""Carrying out a patch on files: everything is checked before the first write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from fanout.orchestrator.deep_agent.backends.protocol import Backend
from fanout.orchestrator.deep_agent.failures import ToolMistake
from fanout.orchestrator.deep_agent.tools.editing.line_ends import split_byte_order_mark
from fanout.orchestrator.deep_agent.tools.editing.patch_format import (
    AddedFile,
    DeletedFile,
    Section,
    UpdatedFile,
)
from fanout.orchestrator.deep_agent.tools.editing.patch_hunks import patched
from fanout.orchestrator.deep_agent.tools.files import Files, encoded, version_of
from fanout.orchestrator.deep_agent.tools.locating import Locator

SeenVersion = Callable[[str], str | None]
"""Returns the version of a file that the agent saw; None if it saw none."""


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """What a patch does to one file."""

    path: str
    before: bytes | None
    after: bytes | None
    """None for a file that is not there."""

    @property
    def change(self) -> Literal["added", "modified", "deleted"]:
        """What happens to it."""
        if self.before is None:
            return "added"
        return "deleted" if self.after is None else "modified"

    @property
    def version(self) -> str | None:
        """The version of the new content."""
        return None if self.after is None else version_of(self.after)


def patched_paths(sections: Sequence[Section], locator: Locator) -> list[str]:
    """Return the files that a patch names, each once.

    Raises:
        ToolMistake: A path is invalid, or two sections name one file.
    """
    paths: list[str] = []
    for section in sections:
        paths.append(locator.resolved(section.path))
        if isinstance(section, UpdatedFile) and section.new_path is not None:
            paths.append(locator.resolved(section.new_path))
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise ToolMistake(f"The patch names {twice} twice. Put all its hunks into one section.")
    return paths


class Patching:
    """Patches the files of one backend.

    Args:
        backend: The files.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._files = Files(backend)
        self._locator = Locator(backend)

    async def planned(self, sections: Sequence[Section], seen: SeenVersion) -> list[FileChange]:
        """Return what a patch does to each file, without doing it.

        Args:
            sections: The patch.
            seen: Which versions the agent saw.

        Raises:
            ToolMistake: A section cannot be carried out.
        """
        changes: list[FileChange] = []
        for section in sections:
            path = self._locator.resolved(section.path)
            if isinstance(section, AddedFile):
                await self._refuse_existing(path)
                changes.append(FileChange(path=path, before=None, after=encoded(section.text)))
                continue
            before = await self._files.current(path, seen(path))
            if isinstance(section, DeletedFile):
                changes.append(FileChange(path=path, before=before, after=None))
            else:
                changes += await self._update(section, path, before)
        return sorted(changes, key=lambda each: each.after is None)

    async def carry_out(self, changes: Sequence[FileChange]) -> None:
        """Make all changes; after a failure those that were made are undone.

        Raises:
            ToolMistake: A file could not be written, or was created meanwhile.
        """
        made: list[FileChange] = []
        try:
            for change in changes:
                async with self._locator.errors(change.path):
                    await self._make(change)
                made.append(change)
        except BaseException as failure:
            left = [each.path for each in reversed(made) if not await self._is_undone(each)]
            if not isinstance(failure, ToolMistake):
                raise
            outcome = f"These stay changed: {', '.join(left)}." if left else "Nothing was changed."
            raise ToolMistake(f"{str(failure).rstrip('.')}. {outcome}") from None

    async def _update(self, section: UpdatedFile, path: str, before: bytes) -> list[FileChange]:
        mark, text = split_byte_order_mark(before.decode())
        after = encoded(mark + await asyncio.to_thread(patched, text, section.hunks, path))
        if section.new_path is None:
            return [FileChange(path=path, before=before, after=after)]
        new_path = self._locator.resolved(section.new_path)
        await self._refuse_existing(new_path)
        return [
            FileChange(path=new_path, before=None, after=after),
            FileChange(path=path, before=before, after=None),
        ]

    async def _refuse_existing(self, path: str) -> None:
        try:
            await self._backend.stat(path)
        except OSError:
            return  # there is nothing, or the write says what is wrong
        raise ToolMistake(f"File already exists: {path}. Update it instead of adding it.")

    async def _make(self, change: FileChange) -> None:
        if change.after is None:
            await self._backend.delete(change.path)
        else:
            await self._backend.write_bytes(
                change.path, change.after, create_only=change.before is None
            )

    async def _is_undone(self, change: FileChange) -> bool:
        try:
            if change.before is None:
                await self._backend.delete(change.path)
            else:
                await self._backend.write_bytes(change.path, change.before)
        except (OSError, ToolMistake):
            return False
        return True
