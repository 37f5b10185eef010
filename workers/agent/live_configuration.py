"""What a person may change while a worker runs: agent definitions and keys in files.

They are read again when a job is claimed, so a change takes effect at the next job, and a running
job keeps the definition that it started with. What was exported when the worker started, and all
other settings, hold until it is started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog
from pydantic import SecretStr

from fanout.orchestrator.configuration.configuration_file import (
    ConfigurationFile,
    configuration_path,
    export_keys,
)
from fanout.orchestrator.configuration.live_definitions import LiveDefinitions, Stamp, stamp_of

log = structlog.get_logger(__name__)


class LiveConfiguration(LiveDefinitions):
    """The definitions and secrets of a worker, which are updated in place.

    Args:
        folder: As of `LiveDefinitions`.
        load_secrets: Reads the secrets that definitions name. Raises ValueError.

    Raises:
        InvalidAgentDefinition: The folder does not exist.
    """

    def __init__(
        self, folder: Path | None, load_secrets: Callable[[], Mapping[str, SecretStr]]
    ) -> None:
        self._load_secrets = load_secrets
        self._read_keys = _stamp_of_keys()
        self._exported = export_keys()
        super().__init__(folder)
        self._log_invalid()
        self.secrets = dict(load_secrets())

    async def look(self) -> None:
        """Look at the files once, and read those that have changed; what is invalid is logged."""
        await super().look()
        keys = await asyncio.to_thread(_stamp_of_keys)
        if keys != self._read_keys:
            await self._read_secrets()
            self._read_keys = keys

    def not_read(self, error: Exception) -> None:
        """Log why the folder could not be read again."""
        log.warning("changed agent definitions not used", error=str(error))

    def was_read(self) -> None:
        """Log what was read again."""
        self._log_invalid()
        log.info("agent definitions read again", agents=len(self.definitions))

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


def _stamp_of_keys() -> Stamp | None:
    path = configuration_path()
    return stamp_of(ConfigurationFile(path).env) if path else None
