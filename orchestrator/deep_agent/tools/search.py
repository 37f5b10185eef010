"""Listing and searching files, the same for every backend: order, pages, limits, formats.

A result has one order, and its note says how to get the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, get_args

from ..backends.matching import (
    filter_pattern,
    hidden_last,
    normal_pattern,
    select,
    static_part,
)
from ..backends.protocol import Backend, Entry, Hit, Hits
from ..failures import ToolMistake
from .files import MAX_RESULT_CHARACTERS
from .locating import Locator

MAX_ENTRIES = 500
"""Entries of ls and glob in one result: about 80,000 characters."""

MAX_WALKED_FILES = 50_000
"""Files that one search reads: more than most repositories have."""

MAX_GREP_HITS = 10_000
"""Lines that one search collects; the result's length is limited too."""

SEARCH_SECONDS = 15.0
"""How long one search may take: an agent waits for it, and part of the result now is worth more."""

OutputMode = Literal["files_with_matches", "content", "count"]
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The entries that were found."""

    entries: tuple[Entry, ...]
    note: str = ""
    """Why these are not all entries and how to get more; empty if they are all."""


@dataclass(frozen=True, kw_only=True)
class GrepResult:
    """The result of a search in files, as text."""

    text: str
    note: str = ""
    """Why not everything was searched; empty if it was."""


class FileSearch:
    """Lists and searches the files of one backend.

    Every method raises `ToolMistake` for a mistake of the agent, such as a wrong path.

    Args:
        backend: The files.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._locator = Locator(backend)

    async def ls(self, path: str, *, offset: int = 0, limit: int = MAX_ENTRIES) -> Listing:
        """Return a directory's entries.

        Args:
            path: The directory.
            offset: How many entries to skip.
            limit: How many to return at most; `MAX_ENTRIES` is the most.

        Raises:
            ToolMistake: The path is invalid or not a directory, or the offset past the end.
        """
        path = self._locator.resolved(path)
        async with self._locator.errors(path):
            entries = await self._backend.list(path)
        return _listing(entries, "entries", offset, limit)

    async def glob(
        self, pattern: str, path: str = "/", *, offset: int = 0, limit: int = MAX_ENTRIES
    ) -> Listing:
        """Return the files below a directory that match a pattern, hidden ones last.

        Args:
            pattern: The pattern.
            path: The directory; an absolute pattern names its own.
            offset: How many files to skip.
            limit: How many to return at most; `MAX_ENTRIES` is the most.

        Raises:
            ToolMistake: The pattern or the path is invalid, or the offset past the end.
        """
        pattern = normal_pattern(pattern)
        path = static_part(pattern) if pattern.startswith("/") else path
        found, complete = list[Entry](), True
        for base in self._locator.search_bases(path):
            async with self._locator.errors(base):
                matching, is_all = await self._matching(pattern, base)
            found, complete = found + matching, complete and is_all
        return _listing(found, "files match", offset, limit, _why_partial(complete=complete))

    async def _matching(self, pattern: str, base: str) -> tuple[list[Entry], bool]:
        deadline = time.monotonic() + SEARCH_SECONDS
        walk = await self._backend.walk(
            base, max_entries=MAX_WALKED_FILES, timeout_seconds=SEARCH_SECONDS
        )
        found, finished = await asyncio.to_thread(
            _sorted_selection, walk.entries, pattern, base, deadline
        )
        return found, walk.complete and finished

    async def grep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        output_mode: str = "files_with_matches",
        *,
        offset: int = 0,
        limit: int = MAX_GREP_HITS,
    ) -> GrepResult:
        """Search files for a literal text; hits in hidden files come last.

        Args:
            pattern: The text.
            path: The directory or file to search; all files when None.
            glob: A pattern for the files' names.
            output_mode: A value of `OutputMode`.
            offset: How many rows of the result to skip.
            limit: How many rows to return at most.

        Raises:
            ToolMistake: An argument is invalid.
        """
        if not pattern or "\n" in pattern:
            raise ToolMistake("pattern must be one non-empty line of text.")
        if output_mode not in get_args(OutputMode):
            raise ToolMistake(f"output_mode must be one of {', '.join(get_args(OutputMode))}.")
        try:
            pattern.encode()
        except UnicodeEncodeError:
            raise ToolMistake("pattern holds lone surrogates, which no text has.") from None
        found = Hits(hits=())
        for base in self._locator.search_bases(path or "/"):
            async with self._locator.errors(base):
                found = _both(found, await self._hits(pattern, base, glob or None))
        rows = await asyncio.to_thread(_rows, found.hits, output_mode)
        note = ". ".join(
            filter(None, [_why_partial(complete=found.complete), _unsearched_note(found)])
        )
        nothing = f"No matches found{' in what was searched' if note else ''}."
        text = _page_of_text(rows, offset, limit) if rows else nothing
        return GrepResult(text=text, note=note)

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
        hits = await asyncio.to_thread(
            sorted, found.hits, key=lambda hit: (*hidden_last(hit.path, base), hit.line_number)
        )
        return replace(found, hits=tuple(hits), complete=found.complete and complete)


def _both(first: Hits, second: Hits) -> Hits:
    return Hits(
        hits=first.hits + second.hits,
        complete=first.complete and second.complete,
        unsearched=first.unsearched + second.unsearched,
        unsearched_paths=first.unsearched_paths + second.unsearched_paths,
    )


def _sorted_selection(
    entries: Sequence[Entry], pattern: str, base: str, deadline: float
) -> tuple[list[Entry], bool]:
    found, finished = select(entries, pattern, base, deadline=deadline)
    return sorted(found, key=lambda entry: hidden_last(entry.path, base)), finished


def _why_partial(*, complete: bool) -> str:
    if complete:
        return ""
    return (
        f"partial: the search stopped at its limit of {MAX_WALKED_FILES} files, {MAX_GREP_HITS} "
        f"lines or {SEARCH_SECONDS:g} seconds; narrow it with path or glob"
    )


def _unsearched_note(found: Hits) -> str:
    if not found.unsearched:
        return ""
    names = ", ".join(found.unsearched_paths)
    more = found.unsearched - len(found.unsearched_paths)
    return (
        f"not searched, being binary or unreadable or too much for the time: {names}"
        f"{f' and {more} more' if more else ''}"
    )


def _listing(
    entries: Sequence[Entry], counted: str, offset: int, limit: int, partial: str = ""
) -> Listing:
    """Return one page of entries, with a note if it is not all."""
    shown = _page(entries, offset, min(limit, MAX_ENTRIES))
    notes = [partial] if partial else []
    if more := len(entries) - offset - len(shown):
        notes.append(
            f"{len(entries)} {counted}; {more} more follow. "
            f"Use offset={offset + len(shown)} to continue"
        )
    return Listing(entries=tuple(shown), note=". ".join(notes))


def _page(rows: Sequence[_T], offset: int, limit: int) -> Sequence[_T]:
    """Return the rows of one page.

    Raises:
        ToolMistake: The offset is negative or past the end, or the limit less than 1.
    """
    if offset < 0 or limit < 1:
        raise ToolMistake(
            f"offset must be 0 or more and limit 1 or more, not {offset} and {limit}."
        )
    if offset and offset >= len(rows):
        raise ToolMistake(f"offset={offset} is past the end: the result has {len(rows)} rows.")
    return rows[offset : offset + limit]


def _page_of_text(rows: Sequence[str], offset: int, limit: int) -> str:
    """Return as many rows as one result may have, with a last line that says how to go on."""
    shown: list[str] = []
    left = MAX_RESULT_CHARACTERS
    for row in _page(rows, offset, limit):
        left -= len(row) + 1
        if left < 0:
            break
        shown.append(row)
    if more := len(rows) - offset - len(shown):
        shown.append(
            f"... ({more} more rows. Use offset={offset + len(shown)} to continue, or narrow the "
            "search)"
        )
    return "\n".join(shown)


def _rows(hits: Sequence[Hit], output_mode: str) -> list[str]:
    if output_mode == "content":
        return [f"{hit.path}:{hit.line_number}:{hit.line}" for hit in hits]
    counts = Counter(hit.path for hit in hits)
    if output_mode == "count":
        return [f"{path}: {count}" for path, count in counts.items()]
    return list(counts)
