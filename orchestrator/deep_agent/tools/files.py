"""File operations, the same for every backend: path rules, limits, messages, formats.

A `ToolMistake` is the agent's mistake; any other exception is a failure of the backend.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import posixpath
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from fanout.orchestrator.deep_agent.backends import paths
from fanout.orchestrator.deep_agent.backends.matching import filter_pattern, is_binary, select
from fanout.orchestrator.deep_agent.backends.protocol import (
    MAX_FILE_BYTES,
    AccessRefused,
    Backend,
    Entry,
    Hit,
    Hits,
)
from fanout.orchestrator.deep_agent.failures import ToolMistake
from fanout.orchestrator.deep_agent.tools.text import bounded, numbered, replaced

MAX_ENTRIES = 500
"""Entries of ls and glob in one result: about 80,000 characters."""

MAX_WALKED_FILES = 50_000
"""Files that one search reads: more than most repositories have."""

MAX_GREP_HITS = 10_000
"""Lines that one search collects; the result's length is limited too."""

SEARCH_SECONDS = 15.0
"""How long one search may take: an agent waits for it, and part of the result now is worth more."""

LARGE_BYTES = 256 * 1024
"""Work on more data runs in a thread: it would block all other agents for milliseconds."""

_MESSAGES = {
    errno.EROFS: "Permission denied, the file system is read-only",
    errno.ENOSPC: "No space is left, delete what is not needed",
    errno.EDQUOT: "No space is left, delete what is not needed",
    errno.ELOOP: "The path leads in circles",
    errno.EINVAL: "Not a regular file",
    errno.ENXIO: "Not a regular file",
    errno.ENAMETOOLONG: "The path is too long",
}
"""Messages for errors of paths that have no exception class."""

OutputMode = Literal["files_with_matches", "content", "count"]
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
class Listing:
    """The entries that were found."""

    entries: tuple[Entry, ...]
    partial: str = ""
    """Why these are not all entries; empty if they are."""


@dataclass(frozen=True, kw_only=True)
class GrepResult:
    """The result of a search in files, as text."""

    text: str
    partial: str = ""


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

    async def ls_info(self, path: str) -> Listing:
        """Return a directory's entries.

        Raises:
            ToolMistake: The path is invalid or not a directory.
        """
        path = paths.checked(path)
        with _path_errors(path):
            entries = await self._backend.list(path)
        return _first(entries, "entries")

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
        path = paths.checked(path)
        data = await self._whole(path)
        if is_binary(data):
            raise ToolMistake(f"{path} is a binary file ({len(data)} bytes), not text.")
        return await _off_loop(data, lambda: _shown(data, offset, limit))

    async def read_bytes(self, path: str, max_bytes: int) -> bytes:
        """Return a file's bytes.

        Raises:
            ToolMistake: There is no such file, or it is larger than `max_bytes`.
        """
        return await self._whole(paths.checked(path), max_bytes)

    async def write(self, path: str, content: str) -> WriteResult:
        """Create a file.

        Raises:
            ToolMistake: The file exists, or cannot be written.
        """
        path = paths.checked(path)
        data = _encoded(content)
        with _path_errors(path):
            try:
                await self._backend.write_bytes(path, data, create_only=True)
            except FileExistsError:
                if (await self._backend.stat(path)).kind == "directory":
                    raise IsADirectoryError(path) from None
                raise ToolMistake(
                    f"File already exists: {path}. Use edit_file to modify."
                ) from None
        return WriteResult(path=path, version=_version(data))

    async def edit(
        self,
        path: str,
        old: str,
        new: str,
        *,
        replace_all: bool = False,
        seen_version: str | None = None,
    ) -> WriteResult:
        """Replace text in a file.

        Args:
            path: The file.
            old: The text to replace.
            new: The text in its place.
            replace_all: Replace every occurrence; otherwise there must be exactly one.
            seen_version: The version that the agent saw; None to skip the check.

        Raises:
            ToolMistake: The file has changed since, is not UTF-8, or does not contain `old` once.
        """
        path = paths.checked(path)
        data = await self._whole(path)
        if seen_version is not None and seen_version != _version(data):
            raise ToolMistake(
                f"{path} changed since you read it. Read it again before you edit it."
            )
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise ToolMistake(f"{path} is not UTF-8 text; edit_file would damage it.") from None
        new_text, occurrences = await _off_loop(
            data, lambda: replaced(text, old, new, replace_all=replace_all)
        )
        new_data = _encoded(new_text)
        with _path_errors(path):
            await self._backend.write_bytes(path, new_data)
        return WriteResult(path=path, version=_version(new_data), occurrences=occurrences)

    async def delete(self, path: str) -> str:
        """Delete a file or a directory with its content, and return its path.

        Raises:
            ToolMistake: It does not exist, or contains the whole workspace.
        """
        path = paths.checked(path)
        root = self._backend.search_root
        if path in {"/", root} or root.startswith(path + "/"):
            raise ToolMistake(
                f"{path} contains the whole workspace and is not deleted. Delete what is in it."
            )
        with _path_errors(path):
            await self._backend.delete(path)
        return path

    async def glob_info(self, pattern: str, path: str = "/") -> Listing:
        """Return the files below a directory that match a pattern.

        Raises:
            ToolMistake: The pattern or the path is invalid.
        """
        base = self._search_base(_static_part(pattern) if pattern.startswith("/") else path)
        deadline = time.monotonic() + SEARCH_SECONDS
        with _path_errors(base):
            walk = await self._backend.walk(
                base, max_entries=MAX_WALKED_FILES, timeout_seconds=SEARCH_SECONDS
            )
        found, finished = await asyncio.to_thread(
            select, walk.entries, pattern, base, deadline=deadline
        )
        return _first(found, "files match", _why_partial(complete=walk.complete and finished))

    async def grep_raw(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        output_mode: str = "files_with_matches",
    ) -> GrepResult:
        """Search files for a literal text.

        Args:
            pattern: The text.
            path: The directory or file to search; all files when None.
            glob: A pattern for the files' names.
            output_mode: A value of `OutputMode`.

        Raises:
            ToolMistake: An argument is invalid.
        """
        if not pattern or "\n" in pattern:
            raise ToolMistake("pattern must be one non-empty line of text.")
        if output_mode not in get_args(OutputMode):
            raise ToolMistake(f"output_mode must be one of {', '.join(get_args(OutputMode))}.")
        base = self._search_base(path or "/")
        with _path_errors(base):
            _encoded(pattern)  # a lone surrogate cannot be searched for
            found = await self._hits(pattern, base, glob or None)
        rows = _grep_rows(found.hits, output_mode)
        return GrepResult(
            text=bounded("\n".join(rows), "the rest is left out; narrow the search")
            if rows
            else "No matches found.",
            partial=_why_partial(complete=found.complete),
        )

    async def upload_files(self, files: Sequence[tuple[str, bytes]]) -> list[Transfer]:
        """Write files, replacing existing ones; a failure does not stop the others."""
        results = []
        for path, content in files:
            try:
                target = paths.checked(path)
                with _path_errors(target):
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
                results.append(Transfer(path=name, content=await self._whole(paths.checked(name))))
            except ToolMistake as mistake:
                results.append(Transfer(path=name, error=str(mistake)))
        return results

    async def _whole(self, path: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        with _path_errors(path):
            data = await self._backend.read_bytes(path, max_bytes + 1)
        if len(data) > max_bytes:
            raise ToolMistake(
                f"{path} is larger than {max_bytes} bytes. Search it with grep instead."
            )
        return data

    def _search_base(self, path: str) -> str:
        """Return where to search: `/` means the agent's files, not the whole container."""
        path = paths.checked(path)
        return self._backend.search_root if path == "/" else path

    async def _hits(self, pattern: str, base: str, glob: str | None) -> Hits:
        deadline = time.monotonic() + SEARCH_SECONDS
        only: list[str] | None = None
        complete = True
        if glob is not None and (await self._backend.stat(base)).kind == "directory":
            walk = await self._backend.walk(
                base, max_entries=MAX_WALKED_FILES, timeout_seconds=SEARCH_SECONDS
            )
            entries, finished = await asyncio.to_thread(
                select, walk.entries, filter_pattern(glob), base, deadline=deadline
            )
            only, complete = [entry.path for entry in entries], walk.complete and finished
        left = max(deadline - time.monotonic(), 1.0)
        found = await self._backend.grep(
            pattern, base, only=only, max_hits=MAX_GREP_HITS, timeout_seconds=left
        )
        hits = sorted(found.hits, key=lambda hit: (hit.path, hit.line_number))
        return Hits(hits=tuple(hits), complete=found.complete and complete)


@contextmanager
def _path_errors(path: str) -> Iterator[None]:
    """Translate errors that a wrong path causes into a ToolMistake; others are raised unchanged."""
    try:
        yield
    except FileNotFoundError:
        raise ToolMistake(f"Error: file not found: {path}") from None
    except IsADirectoryError:
        raise ToolMistake(f"{path} is a directory, not a file.") from None
    except NotADirectoryError:
        raise ToolMistake(f"{path} is not a directory, or one of its parents is a file.") from None
    except FileExistsError:
        raise ToolMistake(f"Something else is already at {path}.") from None
    except AccessRefused as refusal:
        raise ToolMistake(str(refusal)) from None
    except PermissionError:
        raise ToolMistake(f"Permission denied: {path}") from None
    except OSError as error:
        if error.errno not in _MESSAGES:
            raise
        raise ToolMistake(f"{_MESSAGES[error.errno]}: {path}") from None


def _shown(data: bytes, offset: int, limit: int) -> ReadResult:
    text = data.decode(errors="replace")
    lossy = text.encode() != data
    return ReadResult(content=numbered(text, offset, limit), version=_version(data), lossy=lossy)


async def _off_loop(data: bytes, work: Callable[[], _T]) -> _T:
    return await asyncio.to_thread(work) if len(data) > LARGE_BYTES else work()


def _version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _encoded(text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise ToolMistake("The text holds lone surrogates, which UTF-8 cannot express.") from None
    if len(data) > MAX_FILE_BYTES:
        raise ToolMistake(f"The text is {len(data)} bytes; a file may have {MAX_FILE_BYTES}.")
    return data


def _first(entries: Sequence[Entry], counted: str, partial: str = "") -> Listing:
    """Return the first entries, with the reason if they are not all."""
    if not partial and len(entries) > MAX_ENTRIES:
        partial = f"{len(entries)} {counted}; only the first {MAX_ENTRIES} are shown"
    return Listing(entries=tuple(entries[:MAX_ENTRIES]), partial=partial)


def _why_partial(*, complete: bool) -> str:
    if complete:
        return ""
    return (
        f"partial: the search stopped at its limit of {MAX_WALKED_FILES} files, {MAX_GREP_HITS} "
        f"lines or {SEARCH_SECONDS:g} seconds; narrow it with path or glob"
    )


def _static_part(pattern: str) -> str:
    """Return the directory of an absolute pattern above its first special character."""
    names: list[str] = []
    for name in pattern.split("/")[1:-1]:
        if any(character in name for character in "*?[]{}!()|"):
            break
        names.append(name)
    return posixpath.join("/", *names)


def _grep_rows(hits: Sequence[Hit], output_mode: str) -> list[str]:
    if output_mode == "content":
        return [f"{hit.path}:{hit.line_number}:{hit.line}" for hit in hits]
    counts = Counter(hit.path for hit in hits)
    if output_mode == "count":
        return [f"{path}: {count}" for path, count in counts.items()]
    return list(counts)
