"""What a worker knows of a job's files before the job's sandbox is opened.

An agent's memory is read before its first model call: its definition files, and files at the top of
the workspace such as AGENTS.md. The latter are read from what the job starts from, so that a job
which only answers needs no sandbox. Definition files (memory and skills) are read as the worker has
them, and are copied into the home of each sandbox: commands and file tools find them there under
one path, and the change list leaves the home out. A home does not outlive its container.
"""

from __future__ import annotations

import asyncio
import contextlib
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import structlog

from fanout.orchestrator.configuration import definition_files
from fanout.orchestrator.configuration.agent_definitions import AgentDefinition
from fanout.orchestrator.deep_agent import Entry
from fanout.orchestrator.jobs.changes import ChangeBundle, MalformedBundle
from fanout.orchestrator.jobs.failures import InvalidJob, JobFailure
from fanout.orchestrator.jobs.spec import StartFiles
from fanout.orchestrator.path_text import os_path
from fanout.orchestrator.workspace.blobs import BlobStore

from ..sandbox import WORKSPACE, Sandbox

_MODE, _EXECUTABLE_MODE = 0o644, 0o755
MAX_BYTES = 64 * 1024
"""The largest file that is read without a sandbox: an agent's memory shows less of each file."""
MAX_KEPT = 500
"""Files of snapshots that a worker remembers, with those that are missing: 32 MB at most, and the
jobs of some hundred workspaces."""

log = structlog.get_logger(__name__)

Found = bytes | Literal["missing", "unknown"]
"""A file's content; that there is none; or that only a sandbox can tell."""
Look = Callable[[Path, str], Found | None]
"""Looks for a name in a stored archive or layer."""


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
        found = next((file for file in self._files if self._known_path(file) == path), None)
        if found is None:
            self.list(path)
            return None
        return found.data

    def list(self, path: str) -> Sequence[Entry] | None:
        """Return a folder's entries, sorted by path; None for what is not a folder.

        Raises:
            FileNotFoundError: The path does not exist.
        """
        if any(self._known_path(file) == path for file in self._files):
            return None
        entries: dict[str, Entry] = {}
        for file in self._files:
            if (whole := self._known_path(file)).startswith(f"{path}/"):
                name, _, rest = whole.removeprefix(f"{path}/").partition("/")
                entries[name] = Entry(
                    path=f"{path}/{name}",
                    kind="directory" if rest else "file",
                    size_bytes=0 if rest else len(file.data),
                )
        if not entries:
            raise FileNotFoundError(path)
        return [entries[name] for name in sorted(entries)]

    async def write_into(self, sandbox: Sandbox) -> None:
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
                await sandbox.write_bytes(self._known_path(file), file.data, mode=mode)
            except OSError as error:
                raise InvalidJob(
                    f"The definition file {file.path} cannot be written into the sandbox: "
                    f"{error.strerror}."
                ) from error

    def _known_path(self, file: definition_files.DefinitionFile) -> str:
        return f"{self.path}/{file.path}"


class StartReader:
    """Reads files at the top of what jobs start from; the jobs of a worker share the answers.

    Args:
        blobs: Where snapshots and layers are stored.
    """

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._found: dict[tuple[str, str], asyncio.Task[Found | None]] = {}
        """The found files by blob and name."""

    async def read(self, start: StartFiles, name: str) -> bytes | None:
        """Return a file's content; None if only a sandbox can tell.

        Args:
            start: What the job starts from.
            name: The file's name in the workspace, without a folder.

        Raises:
            FileNotFoundError: There is nothing of that name.
        """
        looks: list[tuple[str, Look]] = [(layer, _in_layer) for layer in reversed(start.layers)]
        if start.snapshot:
            looks.append((start.snapshot, _in_archive))
        for blob, look in looks:
            found = await self._find_known(blob, name, look)
            if found == "unknown":
                return None
            if isinstance(found, bytes):
                return found
            if found == "missing":
                break
        raise FileNotFoundError(name)

    async def _find_known(self, blob: str, name: str, look: Look) -> Found | None:
        key = blob, name
        if key not in self._found:
            while len(self._found) >= MAX_KEPT:
                del self._found[next(iter(self._found))]
            self._found[key] = asyncio.create_task(self._look(blob, name, look))
        return await asyncio.shield(self._found[key])

    async def _look(self, blob: str, name: str, look: Look) -> Found | None:
        try:
            return await asyncio.to_thread(look, await self._blobs.fetch(blob), name)
        except (JobFailure, MalformedBundle, tarfile.TarError, OSError) as error:
            log.warning("a workspace was not read", error=type(error).__name__)
            self._found.pop((blob, name), None)  # the store may answer the next job
            return "unknown"  # the opening of a sandbox says what is wrong


class FilesBefore:
    """The files of a sandbox that is not open yet; `KnownFiles` of the sandbox.

    Args:
        definition: The definition files of the job's agent.
        start: What the job starts from; None if its files are not only those.
        reader: Reads files of that.
    """

    def __init__(
        self, definition: DefinitionFolder, start: StartFiles | None, reader: StartReader
    ) -> None:
        self._definition = definition
        self._start = start
        self._reader = reader

    async def read(self, path: str) -> bytes | None:
        """See `KnownFiles.read`."""
        if self._definition.has(path):
            return self._definition.read(path)
        self._check(path)
        folder, _, name = path.rpartition("/")
        if folder != WORKSPACE or self._start is None:
            return None
        return await self._reader.read(self._start, name)

    async def list(self, path: str) -> Sequence[Entry] | None:
        """See `KnownFiles.list`."""
        if self._definition.has(path):
            return self._definition.list(path)
        self._check(path)
        return None

    def _check(self, path: str) -> None:
        """Check that a path can exist.

        Raises:
            FileNotFoundError: It is below an empty workspace.
        """
        if self._start == StartFiles() and path.startswith(f"{WORKSPACE}/"):
            raise FileNotFoundError(path)


def _in_layer(bundle: Path, name: str) -> Found | None:
    """Return what a layer says of a file; None for nothing."""
    with ChangeBundle.open(bundle) as opened:
        for file in opened.changes.files:
            if file.path == name:
                if file.after is None:
                    return "missing"
                is_small = file.after.kind == "file" and file.after.size_bytes <= MAX_BYTES
                return opened.content(file.after) if is_small else "unknown"
        is_moved = any(file.from_path == name for file in opened.changes.files)
    return "missing" if is_moved else None


def _in_archive(archive: Path, name: str) -> Found:
    with tarfile.open(archive) as opened:
        for member in opened:
            if member.name == os_path(name):
                content = opened.extractfile(member) if member.isreg() else None
                is_small = content is not None and member.size <= MAX_BYTES
                return content.read() if content is not None and is_small else "unknown"
    return "missing"
