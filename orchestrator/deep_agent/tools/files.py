"""Reading and changing files, the same for every backend: limits, messages, formats.

A `ToolMistake` is the agent's mistake; any other exception is a failure of the backend.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fanout.orchestrator.deep_agent.backends.matching import is_binary
from fanout.orchestrator.deep_agent.backends.protocol import MAX_FILE_BYTES, Backend
from fanout.orchestrator.deep_agent.failures import ToolMistake
from fanout.orchestrator.deep_agent.tools.editing.edits import Edit, edited
from fanout.orchestrator.deep_agent.tools.editing.line_ends import (
    next_line_end,
    with_line_ends_of,
    without_carriage_returns,
)
from fanout.orchestrator.deep_agent.tools.locating import Locator
from fanout.orchestrator.deep_agent.tools.text import numbered

LARGE_BYTES = 256 * 1024
"""Work on more data runs in a thread: it would block all other agents for milliseconds."""

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class ReadResult:
    """A file's text, formatted for the agent."""

    content: str
    version: str
    """A hash of the file's bytes."""
    lossy: bool = False
    """Whether some bytes are not UTF-8 and are shown as U+FFFD."""


@dataclass(frozen=True, kw_only=True)
class WriteResult:
    """A file that was created or edited."""

    path: str
    version: str
    occurrences: int = 0
    """The number of replacements of an edit."""


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """The outcome of the upload or download of one file."""

    path: str
    content: bytes | None = None
    error: str | None = None


class Files:
    """File operations on one backend.

    Every method raises `ToolMistake` for a mistake of the agent, such as a wrong path.

    Args:
        backend: The files.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._locator = Locator(backend)

    async def read(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Return a part of a text file with line numbers.

        Args:
            path: The file.
            offset: How many lines to skip.
            limit: How many lines to return at most.

        Raises:
            ToolMistake: There is no such text file, or the offset is past its end.
        """
        if offset < 0 or limit < 1:
            raise ToolMistake(
                f"offset must be 0 or more and limit 1 or more, not {offset} and {limit}."
            )
        path = self._locator.resolved(path)
        data = await self._whole(path)
        if is_binary(data):
            raise ToolMistake(f"{path} is a binary file ({len(data)} bytes), not text.")
        return await _off_loop(data, lambda: _shown(data, offset, limit))

    async def read_bytes(self, path: str, max_bytes: int) -> bytes:
        """Return a file's bytes.

        Raises:
            ToolMistake: There is no such file, or it is larger than `max_bytes`.
        """
        return await self._whole(self._locator.resolved(path), max_bytes)

    async def write(
        self, path: str, content: str, *, overwrite: bool = False, seen_version: str | None = None
    ) -> WriteResult:
        """Create a file, or replace all of its text if that is allowed.

        Args:
            path: The file.
            content: All of its text.
            overwrite: Replace an existing file.
            seen_version: The version of an existing file that the agent saw; None if it saw none.

        Raises:
            ToolMistake: The file exists and may not be replaced, because that was not asked for or
                the agent has not seen this version of it; or it cannot be written.
        """
        path = self._locator.resolved(path)
        data = encoded(content)
        async with self._locator.errors(path):
            try:
                await self._backend.write_bytes(path, data, create_only=True)
            except FileExistsError:
                existing = await self._backend.stat(path)
            else:
                return WriteResult(path=path, version=version_of(data))
        if overwrite:
            return await self._overwritten(path, content, seen_version)
        if existing.kind == "directory":
            raise ToolMistake(f"{path} is a directory, not a file.")
        hint = "" if existing.size_bytes else " It is empty: give an empty old_string."
        raise ToolMistake(f"File already exists: {path}. Use edit_file to modify.{hint}")

    async def _overwritten(self, path: str, content: str, seen_version: str | None) -> WriteResult:
        """Replace a file's text; a line that stays keeps its line end."""
        before = await self._whole(path)
        if before and seen_version is None:
            raise ToolMistake(f"{path} exists and you have not read it. Read it first.")
        _check_seen(path, before, seen_version)
        data = encoded(await asyncio.to_thread(_with_line_ends, before, content))
        async with self._locator.errors(path):
            await self._backend.write_bytes(path, data)
        return WriteResult(path=path, version=version_of(data))

    async def edit(
        self, path: str, edits: Sequence[Edit], *, seen_version: str | None = None
    ) -> WriteResult:
        """Replace text in a file: all edits, one after the other, or none.

        Args:
            path: The file.
            edits: The replacements, at least one.
            seen_version: The version that the agent saw; None to skip the check.

        Raises:
            ToolMistake: The file has changed since, is not UTF-8, or an edit does not fit it.
        """
        path = self._locator.resolved(path)
        text = (await self.current(path, seen_version)).decode()
        new_text, occurrences = await asyncio.to_thread(edited, text, edits)
        new_data = encoded(new_text)
        async with self._locator.errors(path):
            await self._backend.write_bytes(path, new_data)
        return WriteResult(path=path, version=version_of(new_data), occurrences=occurrences)

    async def current(self, path: str, seen_version: str | None) -> bytes:
        """Return the UTF-8 content of a file that is to be changed.

        Args:
            path: The file.
            seen_version: The version that the agent saw; None to skip the check.

        Raises:
            ToolMistake: There is no such file, it has changed since, or it is not UTF-8.
        """
        path = self._locator.resolved(path)
        data = await self._whole(path)
        _check_seen(path, data, seen_version)
        try:
            data.decode()
        except UnicodeDecodeError:
            raise ToolMistake(f"{path} is not UTF-8 text; edit_file would damage it.") from None
        return data

    async def delete(self, path: str) -> str:
        """Delete a file or a directory with its content, and return its path.

        Raises:
            ToolMistake: It does not exist, or contains the whole workspace.
        """
        path = self._locator.resolved(path)
        root = self._backend.search_root
        if path in {"/", root} or root.startswith(path + "/"):
            raise ToolMistake(
                f"{path} contains the whole workspace and is not deleted. Delete what is in it."
            )
        async with self._locator.errors(path):
            await self._backend.delete(path)
        return path

    async def upload_files(self, files: Sequence[tuple[str, bytes]]) -> list[Transfer]:
        """Write files, replacing existing ones; a failure does not stop the others."""
        results = []
        for path, content in files:
            try:
                target = self._locator.resolved(path)
                async with self._locator.errors(target):
                    await self._backend.write_bytes(target, content)
                results.append(Transfer(path=target))
            except ToolMistake as mistake:
                results.append(Transfer(path=path, error=str(mistake)))
        return results

    async def download_files(self, names: Sequence[str]) -> list[Transfer]:
        """Read files; a failure does not stop the others."""
        results = []
        for name in names:
            try:
                results.append(
                    Transfer(path=name, content=await self._whole(self._locator.resolved(name)))
                )
            except ToolMistake as mistake:
                results.append(Transfer(path=name, error=str(mistake)))
        return results

    async def _whole(self, path: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        async with self._locator.errors(path):
            data = await self._backend.read_bytes(path, max_bytes + 1)
        if len(data) > max_bytes:
            raise ToolMistake(
                f"{path} is larger than {max_bytes} bytes. Search it with grep instead."
            )
        return data


def _shown(data: bytes, offset: int, limit: int) -> ReadResult:
    text = data.decode(errors="replace")
    lossy = text.encode() != data
    return ReadResult(content=numbered(text, offset, limit), version=version_of(data), lossy=lossy)


async def _off_loop(data: bytes, work: Callable[[], _T]) -> _T:
    return await asyncio.to_thread(work) if len(data) > LARGE_BYTES else work()


def _with_line_ends(before: bytes, content: str) -> str:
    """Return the content with the line ends that the file has, if it has carriage returns."""
    if b"\r\n" not in before:
        return content
    old = before.decode(errors="replace")
    return with_line_ends_of(old, without_carriage_returns(content), next_line_end(old, 0))


def _check_seen(path: str, data: bytes, seen_version: str | None) -> None:
    if seen_version not in {None, version_of(data)}:
        raise ToolMistake(f"{path} changed since you read it. Read it again before you edit it.")


def version_of(data: bytes) -> str:
    """Return a hash of a file's bytes."""
    return hashlib.sha256(data).hexdigest()[:16]


def encoded(text: str) -> bytes:
    """Return the bytes of a file with this text.

    Raises:
        ToolMistake: It cannot be a file.
    """
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise ToolMistake("The text holds lone surrogates, which UTF-8 cannot express.") from None
    if len(data) > MAX_FILE_BYTES:
        raise ToolMistake(f"The text is {len(data)} bytes; a file may have {MAX_FILE_BYTES}.")
    return data
