"""A backend with a shell as ADK's `BaseEnvironment`, for ADK's own tools and skills."""

from __future__ import annotations

import errno
from pathlib import Path, PurePosixPath
from typing import Protocol

from google.adk.environment import BaseEnvironment, ExecutionResult

from ..failures import ToolMistake
from . import matching
from .protocol import MAX_FILE_BYTES, Backend, Shell

MAX_COMMAND_SECONDS = 3600.0
"""The limit for a command without one, which ADK allows."""

MAX_OUTPUT_BYTES = 1024**2
"""The size of an output; ADK cuts it further."""


class ExecutingBackend(Backend, Shell, Protocol):
    """A backend with a shell on the same files."""


class BackendEnvironment(BaseEnvironment):
    """A backend as an ADK environment; it does not open or close the backend.

    Args:
        backend: Files and a shell.
    """

    def __init__(self, backend: ExecutingBackend) -> None:
        self._backend = backend

    @property
    def working_dir(self) -> Path:
        """The backend's search root."""
        return Path(self._backend.search_root)

    async def execute(self, command: str, *, timeout: float | None = None) -> ExecutionResult:  # noqa: ASYNC109 - ADK's name
        """See `BaseEnvironment.execute`.

        `stdout` includes error output, in the order it was written.
        """
        seconds = MAX_COMMAND_SECONDS if timeout is None else timeout
        ended = await self._backend.execute(command, seconds, MAX_OUTPUT_BYTES)
        return ExecutionResult(
            exit_code=ended.shell_code, stdout=ended.text, timed_out=ended.timed_out
        )

    async def read_file(self, path: Path) -> bytes:
        """See `BaseEnvironment.read_file`.

        Raises:
            OSError: The file is larger than MAX_FILE_BYTES; ADK would write it back truncated.
        """
        data = await self._backend.read_bytes(self._absolute(path), MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"larger than {MAX_FILE_BYTES} bytes", str(path))
        return data

    async def write_file(self, path: Path, content: str | bytes) -> None:
        """See `BaseEnvironment.write_file`."""
        data = content.encode() if isinstance(content, str) else content
        await self._backend.write_bytes(self._absolute(path), data)

    def _absolute(self, path: Path) -> str:
        """Return the backend's path.

        Raises:
            PermissionError: The file tools do not accept the path.
        """
        try:
            return matching.checked_path(str(PurePosixPath(self._backend.search_root, path)))
        except ToolMistake as mistake:
            raise PermissionError(str(mistake)) from None
