"""An agent's definition files (its memory and skills) in the home of its sandbox.

Commands and file tools find them there under one path, and the change list leaves the home out. A
home does not outlive its container, so each attempt copies them again, when it opens its sandbox.
Before, they are read as the worker has them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from fanout.orchestrator.configuration import definition_files
from fanout.orchestrator.configuration.agent_definitions import AgentDefinition
from fanout.orchestrator.deep_agent import Entry
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.workers.sandbox import Sandbox

_MODE, _EXECUTABLE_MODE = 0o644, 0o755


class DefinitionFolder:
    """The folder of an agent's definition files, in a home.

    Args:
        definition: The definition of the job's agent.
        home: The home of the job's sandbox.
    """

    def __init__(self, definition: AgentDefinition, home: str) -> None:
        self._files = definition.files
        self.home = home
        self.path = f"{home}/{definition_files.FOLDER}"

    def has(self, path: str) -> bool:
        """Return whether a path is the folder or one below it."""
        return f"{path}/".startswith(f"{self.path}/")

    def read(self, path: str) -> bytes | None:
        """Return a file's content; None for what is not a file.

        Raises:
            FileNotFoundError: The path does not exist.
        """
        found = next((file for file in self._files if self._path_of(file) == path), None)
        if found is None:
            self.list(path)
            return None
        return found.data

    def list(self, path: str) -> Sequence[Entry] | None:
        """Return a folder's entries, sorted by path; None for what is not a folder.

        Raises:
            FileNotFoundError: The path does not exist.
        """
        if any(self._path_of(file) == path for file in self._files):
            return None
        entries: dict[str, Entry] = {}
        for file in self._files:
            if (whole := self._path_of(file)).startswith(f"{path}/"):
                name, _, rest = whole.removeprefix(f"{path}/").partition("/")
                entries[name] = Entry(
                    path=f"{path}/{name}",
                    kind="directory" if rest else "file",
                    size_bytes=0 if rest else len(file.data),
                )
        if not entries:
            raise FileNotFoundError(path)
        return [entries[name] for name in sorted(entries)]

    async def copy_to(self, sandbox: Sandbox) -> None:
        """Write the files into an open sandbox.

        Raises:
            InvalidJob: A file cannot be written; the sandbox may be full.
            SandboxFailure: The sandbox failed.
        """
        if self._files:
            with contextlib.suppress(FileNotFoundError):
                await sandbox.delete(self.path)  # an earlier attempt's copy, perhaps changed
        for file in self._files:
            mode = _EXECUTABLE_MODE if file.executable else _MODE
            try:
                await sandbox.write_bytes(self._path_of(file), file.data, mode=mode)
            except OSError as error:
                raise InvalidJob(
                    f"The definition file {file.path} cannot be written into the sandbox: "
                    f"{error.strerror}."
                ) from error

    def _path_of(self, file: definition_files.DefinitionFile) -> str:
        return f"{self.path}/{file.path}"
