"""An overlay on a folder of this machine, with a shell: commands run in a copy of the folder.

The copy is made when the first command runs. Before each command it gets the overlay's changes, and
after each the overlay gets those of the command, so file tools and commands see the same files.
"""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from fanout.orchestrator.deep_agent.backends import processes
from fanout.orchestrator.deep_agent.backends.local_shell import LocalShellBackend
from fanout.orchestrator.deep_agent.backends.overlay import OverlayBackend, StagedFile
from fanout.orchestrator.deep_agent.backends.protocol import Execution, OutputSink
from fanout.orchestrator.deep_agent.delegation.children.folder_copy import Changes, FolderCopy
from fanout.orchestrator.path_text import os_path, path_text


class ShellOverlay(OverlayBackend):
    """The files of a `LocalShellBackend` with changes on top, and its shell in a copy of them.

    In commands the path of the folder stands for that of the copy, and in their output the other
    way round: files have one path for the agent. A command that finds the folder otherwise, such as
    by a path in a script, works on the folder itself, for this is no sandbox.

    Args:
        base: The files below.
    """

    def __init__(self, base: LocalShellBackend) -> None:
        super().__init__(base)
        self._shell = base
        self._root = Path(base.search_root)
        self._marker = f"{uuid4().hex}-"
        self._copy: FolderCopy | None = None
        self._put: dict[str, StagedFile] = {}
        """The changes that the copy has."""
        self._syncing = asyncio.Lock()
        self.left_out: set[str] = set()
        """Paths that commands made and that are not taken over."""

    async def execute(
        self,
        command: str,
        timeout_seconds: float,
        max_output_bytes: int,
        on_output: OutputSink | None = None,
    ) -> Execution:
        """See `Shell.execute`.

        Raises:
            ToolMistake: The changes exceed what an overlay may hold.
            OSError: The folder cannot be copied.
        """
        async with self._syncing:
            copy = await self._current_copy()
        here, there = str(copy.path), str(self._root)

        async def shown(data: bytes) -> None:
            if on_output is not None:
                await on_output(data.replace(os.fsencode(here), os.fsencode(there)))

        done = await self._shell.execute_in(
            copy.path,
            _replaced(command, there, here),
            timeout_seconds,
            max_output_bytes,
            shown if on_output else None,
            marker=self._marker,
        )
        await self.take_over()
        return _output_with(done, os.fsencode(here), os.fsencode(there))

    async def take_over(self) -> None:
        """Stage what commands changed since the last call.

        Raises:
            ToolMistake: The changes exceed what an overlay may hold.
        """
        async with self._syncing:
            if self._copy is None:
                return
            changes = await asyncio.to_thread(self._copy.changes)
            self._stage_all(self._copy, changes)

    async def close(self) -> None:
        """Delete the copy, and stop what commands left running in it."""
        if self._copy is not None:
            try:
                await processes.stop_leftovers(self._marker)
            finally:
                await asyncio.to_thread(self._copy.remove)

    def _stage_all(self, copy: FolderCopy, changes: Changes) -> None:
        for file in changes.files:
            path = self._text(file.path)
            self.put(replace(file, path=path))
            self._put[path] = self._staged[path]
            copy.seen(file.path, changes)
        self.left_out = set(map(self._text, changes.left_out))
        self._removed.update(map(self._text, changes.removed_folders))

    def _text(self, path: str) -> str:
        """Return the path text of a path in the copy, as the agent names it."""
        return path_text(str(self._root / path))

    async def _current_copy(self) -> FolderCopy:
        """Return the copy with all changes of the overlay."""
        if self._copy is None:
            self._copy = await asyncio.to_thread(FolderCopy, self._root)
            await asyncio.to_thread(self._copy.make)
        for file in self.changes:
            if self._put.get(file.path) is not file:
                below, _, relative = os_path(file.path).partition(f"{self._root}/")
                if not below:
                    await asyncio.to_thread(self._copy.put, relative, file.after)
                self._put[file.path] = file
        return self._copy


def _replaced(text: str, old: str, new: str) -> str:
    """Replace a folder's path, but not that of another folder whose name begins like it."""
    return re.sub(re.escape(old) + r"(?![\w.-])", lambda _: new, text)


def _output_with(done: Execution, old: bytes, new: bytes) -> Execution:
    """Return the outcome with one path in its output replaced by another."""
    head = done.output[: done.head_bytes].replace(old, new)
    tail = done.output[done.head_bytes :].replace(old, new)
    output = head + tail
    return replace(
        done,
        output=output,
        error_output=done.error_output.replace(old, new),
        head_bytes=len(head),
        total_bytes=done.total_bytes + len(output) - len(done.output),
    )
