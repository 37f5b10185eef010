"""What a person may change while a worker runs: agent definitions and keys in files.

They are read again when a job is claimed, so a change takes effect at the next job, and a running
job keeps the definition that it started with. What was exported when the worker started, and all
other settings, hold until it is started again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import structlog
from pydantic import SecretStr

from fanout.orchestrator.configuration.agent_definitions import (
    InvalidAgentDefinition,
    read_agent_definitions,
)
from fanout.orchestrator.configuration.configuration_file import (
    ConfigurationFile,
    configuration_path,
    default_agents,
    export_keys,
)

log = structlog.get_logger(__name__)

MAX_WATCHED_FILES = 2000
"""Of a folder of agents: with the files of four large definitions. Looking at them takes 10 ms."""

_NOT_WATCHED = {".git", "__pycache__"}

Stamp = tuple[str, int, int, int]
"""A file's path, time of change, size and inode: another content has another one."""


class LiveConfiguration:
    """The definitions and secrets of a worker, which are updated in place.

    Args:
        folder: The user's folder of agent definitions; None: that beside the configuration file,
            while it exists.
        load_secrets: Reads the secrets that definitions name. Raises ValueError.

    Raises:
        InvalidAgentDefinition: The folder does not exist.
    """

    def __init__(
        self, folder: Path | None, load_secrets: Callable[[], Mapping[str, SecretStr]]
    ) -> None:
        self._given_folder = folder
        self._load_secrets = load_secrets
        self._read: tuple[Stamp, ...] = tuple(_stamps(self._folder))
        self._read_keys = _stamp_of_keys()
        self._exported = export_keys()
        self._look: asyncio.Task[None] | None = None
        """The look that runs, or the last one."""
        self._next_look: asyncio.Task[None] | None = None
        """The look that begins when this one has ended."""
        self.definitions = read_agent_definitions(self._folder)
        self._log_invalid()
        self.secrets = dict(load_secrets())

    @property
    def _folder(self) -> Path | None:
        """The folder of agent definitions, if there is one now."""
        beside = default_agents()
        if self._given_folder in {None, beside}:
            return beside if beside is not None and beside.is_dir() else None
        return self._given_folder

    async def refresh(self) -> None:
        """Read again what has changed; what is invalid is logged, and that from before stays.

        All who call this while the files are looked at share the next look, and go on in the same
        step of the loop.
        """
        if self._next_look is None:
            self._next_look = asyncio.create_task(self._look_after(self._look))
        await asyncio.shield(self._next_look)

    async def _look_after(self, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        self._look, self._next_look = self._next_look, None
        stamps, keys = await asyncio.to_thread(
            lambda: (tuple(_stamps(self._folder)), _stamp_of_keys())
        )
        if stamps != self._read:
            await self._read_definitions()
            self._read = stamps
        if keys != self._read_keys:
            await self._read_secrets()
            self._read_keys = keys

    async def _read_definitions(self) -> None:
        try:
            found = await asyncio.to_thread(lambda: read_agent_definitions(self._folder))
        except (InvalidAgentDefinition, OSError) as error:
            log.warning("changed agent definitions not used", error=str(error))
            return
        for name in found.invalid.keys() & self.definitions.keys():
            found[name] = self.definitions[name]  # its last valid one stays
        self.definitions.clear()
        self.definitions.update(sorted(found.items()))
        self.definitions.invalid = found.invalid
        self._log_invalid()
        log.info("agent definitions read again", agents=len(found))

    def _log_invalid(self) -> None:
        for name, problem in self.definitions.invalid.items():
            log.warning("agent definition not used", agent=name, error=problem)

    async def _read_secrets(self) -> None:
        try:
            self._exported = await asyncio.to_thread(export_keys, self._exported)
            found = await asyncio.to_thread(self._load_secrets)
        except (ValueError, OSError) as error:
            log.warning("changed keys not used", error=type(error).__name__)
            return
        self.secrets.clear()
        self.secrets.update(found)
        log.info("keys read again")


def _stamps(folder: Path | None) -> Iterator[Stamp]:
    """Yield the stamps of the files below a folder, at most `MAX_WATCHED_FILES`."""
    if folder is None:
        return
    left = MAX_WATCHED_FILES
    for path, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - _NOT_WATCHED)
        for name in sorted(names)[:left]:
            left -= 1
            if (stamp := _stamp(Path(path, name))) is not None:
                yield stamp


def _stamp_of_keys() -> Stamp | None:
    path = configuration_path()
    return _stamp(ConfigurationFile(path).env) if path else None


def _stamp(file: Path) -> Stamp | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return str(file), status.st_mtime_ns, status.st_size, status.st_ino
