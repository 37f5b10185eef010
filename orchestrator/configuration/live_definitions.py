"""The agent definitions of a long-running process: read again when their files change."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

from .agent_definitions import (
    AgentDefinitions,
    InvalidAgentDefinition,
    read_agent_definitions,
)
from .configuration_file import default_agents

MAX_WATCHED_FILES = 2000
"""The most watched files of a folder of agents, including the files of four large definitions.
Checking them takes 10 ms."""

_NOT_WATCHED = {".git", "__pycache__"}

Stamp = tuple[str, int, int, int]
"""A file's path, time of change, size and inode, which differ for another content."""


class LiveDefinitions:
    """The agents that jobs may name, which are updated in place.

    Args:
        folder: The user's folder of agent definitions; None: the one next to the configuration
            file, while it exists.

    Raises:
        InvalidAgentDefinition: The folder does not exist.
    """

    def __init__(self, folder: Path | None) -> None:
        self._given_folder = folder
        self._read: tuple[Stamp, ...] = tuple(_stamps(self._folder))
        self._look: asyncio.Task[None] | None = None
        """The running check, or the last one."""
        self._next_look: asyncio.Task[None] | None = None
        """The check that begins when the running one has ended."""
        self.definitions: AgentDefinitions = read_agent_definitions(self._folder)

    @property
    def _folder(self) -> Path | None:
        """The folder of agent definitions, if there is one now."""
        default_folder = default_agents()
        if self._given_folder in {None, default_folder}:
            return (
                default_folder if default_folder is not None and default_folder.is_dir() else None
            )
        return self._given_folder

    async def refresh(self) -> None:
        """Read changed definitions again; an invalid one keeps its earlier version.

        All callers during a check share the next one, and continue in the same step of the loop.
        """
        if self._next_look is None:
            self._next_look = asyncio.create_task(self._refresh_later(self._look))
        await asyncio.shield(self._next_look)

    async def _refresh_later(self, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        self._look, self._next_look = self._next_look, None
        await self.look()

    async def look(self) -> None:
        """Check the files once, and read those that have changed."""
        stamps = await asyncio.to_thread(lambda: tuple(_stamps(self._folder)))
        if stamps == self._read:
            return
        try:
            found = await asyncio.to_thread(lambda: read_agent_definitions(self._folder))
        except (InvalidAgentDefinition, OSError) as error:
            self.not_read(error)
        else:
            for name in found.invalid.keys() & self.definitions.keys():
                found[name] = self.definitions[name]  # its last valid version stays
            self.definitions.clear()
            self.definitions.update(sorted(found.items()))
            self.definitions.invalid = found.invalid
            self.was_read()
        self._read = stamps

    def not_read(self, error: Exception) -> None:
        """Handle the case that the folder could not be read again."""

    def was_read(self) -> None:
        """Handle the case that the definitions were read again."""


def read_stamp(file: Path) -> Stamp | None:
    """Return a file's stamp; None if there is no such file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return str(file), status.st_mtime_ns, status.st_size, status.st_ino


def _stamps(folder: Path | None) -> Iterator[Stamp]:
    """Yield the stamps of the files below a folder, at most `MAX_WATCHED_FILES`."""
    if folder is None:
        return
    left = MAX_WATCHED_FILES
    for path, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - _NOT_WATCHED)
        for name in sorted(names)[:left]:
            left -= 1
            if (stamp := read_stamp(Path(path, name))) is not None:
                yield stamp
