"""Reading and changing files, the same for every backend: limits, messages, formats.

A `ToolMistake` is the agent's mistake; any other exception is a failure of the backend. The lines
of a text file are read block by block.
"""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ...portable.text_search import is_binary
from ..backends.protocol import MAX_FILE_BYTES, Backend, Shell
from ..failures import ToolMistake
from .documents import text_of_notebook, text_of_pdf
from .editing import (
    Edit,
    edited,
    find_line_end,
    match_line_ends,
    split_byte_order_mark,
    without_carriage_returns,
)
from .locating import Locator

MAX_RESULT_CHARACTERS = 80_000
"""About 20,000 tokens, the most that one tool result may take of a model's context."""

LINE_NUMBER_WIDTH = 6
"""The width of line numbers, as in `cat -n`."""

MAX_LINE_CHARACTERS = 5_000
"""A longer line is split into chunks numbered 5, 5.1, 5.2 …"""

EMPTY_FILE = "System reminder: File exists but has empty contents"
"""An empty result would look like a failed read."""

_MAX_LINE_BYTES = 4 * MAX_RESULT_CHARACTERS
"""The part of a line that is kept: no more fits a result, of whatever characters."""

_CONTINUATION = bytes(range(0x80, 0xC0))
"""UTF-8's bytes after the first of a character."""

LARGE_BYTES = 256 * 1024
"""Work on more data runs in a thread: it would block all other agents for milliseconds."""

READ_BLOCK_BYTES = 2 * 1024**2
"""The bytes read at once of a file above MAX_FILE_BYTES."""

READ_SECONDS = 15.0
"""How long reading may take until its first line is reached: as long as a search."""

PARTLY_READ = "partly read"
"""The version of a file above MAX_FILE_BYTES, which no content has: once it is smaller, it has
changed since it was read."""

_T = TypeVar("_T")


@dataclass
class _Line:
    """The beginning of a line, and how many characters follow it."""

    data: bytes = b""
    left_out: int = 0

    def append(self, data: bytes) -> None:
        kept = data[: _MAX_LINE_BYTES - len(self.data)]
        self.data += kept
        self.left_out += len(data[len(kept) :].translate(None, _CONTINUATION))

    def text(self) -> tuple[str, bool]:
        """Return the text without a final carriage return, and whether it is not all UTF-8."""
        decoder = codecs.getincrementaldecoder("utf-8")
        is_whole = not self.left_out
        try:
            return decoder().decode(self.data, final=is_whole).removesuffix("\r"), False
        except UnicodeDecodeError:
            return decoder("replace").decode(self.data, final=is_whole).removesuffix("\r"), True


class LineWindow:
    """Collects lines from the blocks of a file, and holds little more than one result of them.

    Args:
        offset: How many lines to skip.
        limit: How many lines to collect at most.
    """

    def __init__(self, offset: int, limit: int) -> None:
        self._offset, self._limit = offset, limit
        self._lines: list[_Line] = []
        self._kept_bytes = 0
        self._line_ends = 0
        self._ends_with_line = True
        self.lossy = False
        """Whether some shown bytes are not UTF-8 and are shown as U+FFFD."""

    @property
    def lines_read(self) -> int:
        """How many lines have begun so far."""
        return self._line_ends + (not self._ends_with_line)

    @property
    def has_lines(self) -> bool:
        """Whether there is something to show."""
        return bool(self._lines)

    @property
    def is_full(self) -> bool:
        """Whether a line has begun that cannot be shown."""
        return self._takes_no_more() and self.lines_read > self._offset + len(self._lines)

    def _takes_no_more(self) -> bool:
        return len(self._lines) >= self._limit or self._kept_bytes > _MAX_LINE_BYTES

    def add(self, block: bytes) -> None:
        """Take the next block of the file."""
        if not block:
            return
        before, self._line_ends = self._line_ends, self._line_ends + block.count(b"\n")
        self._ends_with_line = block.endswith(b"\n")
        if self._line_ends < self._offset:
            return
        if before < self._offset:
            block = block.split(b"\n", self._offset - before)[-1]
        first = max(0, before - self._offset)
        room = max(0, self._limit - first)
        *pieces, rest = block.split(b"\n", room)
        if len(pieces) < room and rest:  # the block ends within a line that can be shown
            pieces.append(rest)
        for index, piece in enumerate(pieces, first):
            if index == len(self._lines) and not self._takes_no_more():
                self._lines.append(_Line())
            if index >= len(self._lines):
                return
            self._lines[index].append(piece)
            self._kept_bytes += min(len(piece), _MAX_LINE_BYTES)

    def content(self, *, is_whole: bool) -> str:
        """Return the lines with their numbers in the form of `cat -n`, and where to read on.

        Args:
            is_whole: Whether every block of the file was added.

        Raises:
            ToolMistake: The offset is past the end.
        """
        if is_whole and not self.lines_read:
            return EMPTY_FILE
        if not self._lines:
            raise ToolMistake(
                f"offset={self._offset} is past the end: the file has {self.lines_read} lines."
            )
        shown: list[str] = []
        left, next_line = MAX_RESULT_CHARACTERS, self._offset
        for line in self._lines:
            text, is_lossy = line.text()
            if not next_line:
                _, text = split_byte_order_mark(text)
            rows = _rows(text, next_line + 1)
            size = sum(map(len, rows)) + len(rows)
            if size > left and shown:
                break
            self.lossy = self.lossy or is_lossy
            next_line += 1
            shown += _cut(rows, next_line, line.left_out) if size > left else rows
            left -= size
        more = self.lines_read - next_line
        if not is_whole:
            shown.append(f"... (more follows. Use offset={next_line} to continue reading)")
        elif more:
            shown.append(f"... ({more} more lines. Use offset={next_line} to continue reading)")
        return "\n".join(shown)


def _rows(line: str, number: int) -> list[str]:
    chunks = [
        line[at : at + MAX_LINE_CHARACTERS] for at in range(0, len(line), MAX_LINE_CHARACTERS)
    ] or [""]
    labels = [str(number)] + [f"{number}.{index}" for index in range(1, len(chunks))]
    return [
        f"{label:>{LINE_NUMBER_WIDTH}}\t{chunk}"
        for label, chunk in zip(labels, chunks, strict=True)
    ]


def _cut(rows: list[str], number: int, left_out: int) -> list[str]:
    """Return as many chunks of one huge line as fit; some always do."""
    fitting = MAX_RESULT_CHARACTERS // (MAX_LINE_CHARACTERS + 2 * LINE_NUMBER_WIDTH)
    left_out += sum(len(row.partition("\t")[2]) for row in rows[fitting:])
    return [*rows[:fitting], f"... (line {number} is cut here: {left_out} more characters in it)"]


@dataclass(frozen=True, kw_only=True)
class ReadResult:
    """A file's text, formatted for the agent."""

    content: str
    version: str
    """A hash of the file's bytes, or `PARTLY_READ`."""
    lossy: bool = False
    """Whether some bytes are not UTF-8 and are shown as U+FFFD."""


@dataclass(frozen=True, kw_only=True)
class WriteResult:
    """A file that was created or edited."""

    path: str
    version: str
    occurrences: int = 0
    """The number of replacements of an edit."""


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
        _check_window(offset, limit)
        path = self._locator.resolved(path)
        window = LineWindow(offset, limit)
        async with self._locator.errors(path):
            data = await self._backend.read_bytes(path, MAX_FILE_BYTES + 1)
            if is_binary(data):
                raise ToolMistake(f"{path} is a binary file, not text.")
            await _off_loop(data, lambda: window.add(data))
            is_whole = len(data) <= MAX_FILE_BYTES
            version = hash_version(data) if is_whole else PARTLY_READ
            if not is_whole:
                is_whole = await self._read_window(path, window, len(data))
        content = await _off_loop(data, lambda: window.content(is_whole=is_whole))
        return ReadResult(content=content, version=version, lossy=window.lossy)

    async def _read_window(self, path: str, window: LineWindow, position: int) -> bool:
        """Read a large file from a position until the window is full; return whether to its end.

        Raises:
            ToolMistake: The first line was not reached in `READ_SECONDS`.
        """
        deadline = time.monotonic() + READ_SECONDS
        while not window.is_full:
            if time.monotonic() > deadline:
                if window.has_lines:
                    return False
                instead = "sed or tail in the shell" if self._has_shell else "grep"
                raise ToolMistake(
                    f"{path} is too long for this offset: reading took {READ_SECONDS:g} seconds to "
                    f"line {window.lines_read}. Use a smaller offset, or {instead}."
                )
            block = await self._backend.read_bytes(path, READ_BLOCK_BYTES, offset=position)
            if not block:
                return True
            position += len(block)
            await asyncio.to_thread(window.add, block)
        return False

    @property
    def _has_shell(self) -> bool:
        return isinstance(self._backend, Shell)

    async def read_notebook(self, path: str, offset: int, limit: int) -> ReadResult:
        """Return a part of a notebook's text, as `read` does.

        Raises:
            ToolMistake: There is no such notebook, or the offset is past its end.
        """
        path = self._locator.resolved(path)
        data = await self._whole(path, "make a smaller one without outputs")
        text = await text_of_notebook(path, data)
        return await _part_of(text, data, offset, limit)

    async def read_pdf(self, path: str, data: bytes, offset: int, limit: int) -> ReadResult:
        """Return a part of a PDF's text, as `read` does.

        Raises:
            ToolMistake: It cannot be read, or the offset is past its end.
        """
        return await _part_of(await text_of_pdf(path, data), data, offset, limit)

    async def read_bytes(self, path: str, max_bytes: int) -> bytes:
        """Return a file's bytes.

        Raises:
            ToolMistake: There is no such file, or it is larger than `max_bytes`.
        """
        instead = "make a smaller one with the shell" if self._has_shell else "use a smaller one"
        return await self._whole(self._locator.resolved(path), instead, max_bytes)

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
                return WriteResult(path=path, version=hash_version(data))
        if overwrite:
            return await self._overwritten(path, content, seen_version)
        if existing.kind == "directory":
            raise ToolMistake(f"{path} is a directory, not a file.")
        hint = "" if existing.size_bytes else " It is empty: give an empty old_string."
        raise ToolMistake(f"File already exists: {path}. Use edit_file to modify.{hint}")

    async def _overwritten(self, path: str, content: str, seen_version: str | None) -> WriteResult:
        """Replace a file's text; its byte order mark stays, and a line that stays keeps its end."""
        before = await self._whole(path, "delete it first to write a new one")
        if before and seen_version is None:
            raise ToolMistake(f"{path} exists and you have not read it. Read it first.")
        _check_seen(path, before, seen_version)
        data = encoded(await asyncio.to_thread(_match_form, before, content))
        async with self._locator.errors(path):
            await self._backend.write_bytes(path, data)
        return WriteResult(path=path, version=hash_version(data))

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
        mark, text = split_byte_order_mark((await self.current(path, seen_version)).decode())
        if mark:
            edits = [_without_byte_order_mark(edit) for edit in edits]
        new_text, occurrences = await asyncio.to_thread(edited, text, edits)
        new_data = encoded(mark + new_text)
        async with self._locator.errors(path):
            await self._backend.write_bytes(path, new_data)
        return WriteResult(path=path, version=hash_version(new_data), occurrences=occurrences)

    async def current(self, path: str, seen_version: str | None) -> bytes:
        """Return the UTF-8 content of a file that is to be changed.

        Args:
            path: The file.
            seen_version: The version that the agent saw; None to skip the check.

        Raises:
            ToolMistake: There is no such file, it has changed since, or it is not UTF-8.
        """
        path = self._locator.resolved(path)
        instead = "write its parts into smaller files"
        if self._has_shell:
            instead = "change it with a program in the shell, such as sed"
        data = await self._whole(path, f"it is too large to be edited: {instead}")
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

    async def _whole(self, path: str, instead: str, max_bytes: int | None = None) -> bytes:
        """Return a file's bytes, or say what to do instead if they are more than the limit."""
        max_bytes = MAX_FILE_BYTES if max_bytes is None else max_bytes
        async with self._locator.errors(path):
            data = await self._backend.read_bytes(path, max_bytes + 1)
        if len(data) > max_bytes:
            raise ToolMistake(f"{path} is larger than {max_bytes} bytes; {instead}.")
        return data


async def _part_of(text: str, data: bytes, offset: int, limit: int) -> ReadResult:
    _check_window(offset, limit)
    window, encoded_text = LineWindow(offset, limit), text.encode(errors="replace")

    def content() -> str:
        window.add(encoded_text)
        return window.content(is_whole=True)

    return ReadResult(content=await _off_loop(encoded_text, content), version=hash_version(data))


def _check_window(offset: int, limit: int) -> None:
    if offset < 0 or limit < 1:
        raise ToolMistake(
            f"offset must be 0 or more and limit 1 or more, not {offset} and {limit}."
        )


async def _off_loop(data: bytes, work: Callable[[], _T]) -> _T:
    return await asyncio.to_thread(work) if len(data) > LARGE_BYTES else work()


def _match_form(before: bytes, content: str) -> str:
    """Return the content with the byte order mark and the line ends that the file has."""
    mark, old = split_byte_order_mark(before.decode(errors="replace"))
    content = content.removeprefix(mark)
    if "\r\n" in old:
        line_end = find_line_end(old, old.find("\n"))
        content = match_line_ends(old, without_carriage_returns(content), line_end)
    return mark + content


def _without_byte_order_mark(edit: Edit) -> Edit:
    _, old = split_byte_order_mark(edit.old)
    _, new = split_byte_order_mark(edit.new)
    return replace(edit, old=old, new=new)


def _check_seen(path: str, data: bytes, seen_version: str | None) -> None:
    if seen_version not in {None, hash_version(data)}:
        raise ToolMistake(f"{path} changed since you read it. Read it again before you edit it.")


def hash_version(data: bytes) -> str:
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
