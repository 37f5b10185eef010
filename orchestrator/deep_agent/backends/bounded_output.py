"""A stream of output: its beginning and end in memory, and all of it in a file if they are not all.

The files are kept where the command runs, outside of the agent's files.
"""

from __future__ import annotations

import asyncio
import codecs
import itertools
import os
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

MAX_OUTPUT_FILE_BYTES = 64 * 1024**2
"""The most that is kept of one command's output: ten times the log of a large build."""

MAX_OUTPUT_FILES_BYTES = 256 * 1024**2
"""The most that is kept of all outputs of one agent; the oldest are deleted first."""

_MAX_PENDING_BYTES = 4 * 1024**2
"""Output that waits for the disk; a command that is ahead of it by more has to wait too."""

_CONTINUATION = range(0x80, 0xC0)
"""UTF-8's bytes after the first of a character."""


@dataclass(frozen=True, kw_only=True)
class OutputFile:
    """A file with the whole output of a command, or as much of its beginning as was kept."""

    path: str
    """The path for the file tools and for the shell."""
    size_bytes: int


class BoundedOutput:
    """Head and tail of a stream, and the length of the whole.

    Holds little more than its limits, however much is added. Containers run a copy of this class in
    `workers/sandbox/inside/outputs.py`: what is shipped into them imports nothing from here, since
    every start of a sandbox would pay for the packages on the way.
    """

    def __init__(self, *, head_bytes: int = 0, tail_bytes: int) -> None:
        self.total_bytes = self.line_ends = 0
        self._head, self._tail = bytearray(), bytearray()
        self._head_bytes, self._tail_bytes = head_bytes, tail_bytes

    @classmethod
    def halves(cls, max_bytes: int) -> BoundedOutput:
        """Return a buffer that keeps `max_bytes`, half of them from the beginning."""
        return cls(head_bytes=max_bytes // 2, tail_bytes=max_bytes - max_bytes // 2)

    @property
    def head_bytes(self) -> int:
        """How much of `content()` is the beginning of the stream; the rest is its end."""
        return len(self._head)

    def is_cut_by(self, data: bytes) -> bool:
        """Return whether `content()` will not be all any more once this data is added."""
        return self.total_bytes + len(data) > self._head_bytes + self._tail_bytes

    def add(self, data: bytes) -> None:
        """Append data; what belongs neither to the head nor to the tail is dropped."""
        self.total_bytes += len(data)
        self.line_ends += data.count(b"\n")
        room = self._head_bytes - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._tail_bytes + (64 << 10):  # so that few additions move bytes
            del self._tail[: len(self._tail) - self._tail_bytes]

    def content(self) -> bytes:
        """Return everything, or the head and the tail."""
        return bytes(self._head + self._tail[max(0, len(self._tail) - self._tail_bytes) :])


class OutputFiles:
    """The files with whole outputs in one folder. The methods block.

    Args:
        folder: Its path for the agent.
        create: Creates a file at a path, exclusively and without following a link, and returns its
            descriptor.
        delete: Deletes the file at a path.
    """

    def __init__(
        self, folder: str, create: Callable[[str], int], delete: Callable[[str], None]
    ) -> None:
        self._folder, self._create, self._delete = folder, create, delete
        self._numbers = itertools.count(1)
        self._kept: deque[OutputFile] = deque()

    def create(self) -> tuple[str, int]:
        """Create a file; return its path and its descriptor.

        Raises:
            OSError: It cannot be created.
        """
        # The random part: an earlier process may have left files in the folder.
        path = f"{self._folder}/{next(self._numbers)}-{secrets.token_hex(3)}.txt"
        return path, self._create(path)

    def keep(self, file: OutputFile) -> None:
        """Count a finished file, and delete the oldest ones that exceed the limit on all."""
        self._kept.append(file)
        total = sum(kept.size_bytes for kept in self._kept)
        while total > MAX_OUTPUT_FILES_BYTES:
            oldest = self._kept.popleft()
            total -= oldest.size_bytes
            with suppress(OSError):  # whoever runs commands may have deleted it
                self._delete(oldest.path)


class OutputRecorder:
    """Writes one command's output into a file, in threads, once it is longer than its limit.

    Args:
        files: Where.
        resume: Called when the writer has caught up: more output may be read.
    """

    def __init__(self, files: OutputFiles, resume: Callable[[], None]) -> None:
        self._files, self._resume = files, resume
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._left = MAX_OUTPUT_FILE_BYTES
        self._writing: asyncio.Task[None] | None = None
        self._file: tuple[str, int] | None = None
        self._written, self._has_failed = 0, False

    @property
    def is_behind(self) -> bool:
        """Whether so much waits for the disk that no more output should be read."""
        return self._pending_bytes > _MAX_PENDING_BYTES

    def add(self, data: bytes, before: BoundedOutput) -> None:
        """Record data that follows what is in `before`, if that will not be all any more."""
        if self._writing is None:
            if not before.is_cut_by(data):
                return
            data = before.content() + data
        part = data[: self._left]
        if not part:
            return
        self._left -= len(part)
        self._pending.append(part)
        self._pending_bytes += len(part)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def caught_up(self) -> None:
        """Wait until everything that was added is written."""
        while self._writing is not None and not self._writing.done():
            await asyncio.wait({self._writing})

    async def finish(self) -> OutputFile | None:
        """Close the file; None when nothing was or could be recorded."""
        await self.caught_up()
        if self._file is None:
            return None
        path, descriptor = self._file
        self._file = None
        file = OutputFile(path=path, size_bytes=self._written)

        def close() -> None:
            os.close(descriptor)
            self._files.keep(file)

        await asyncio.to_thread(close)
        return file if self._written else None

    async def _write(self) -> None:
        while self._pending:
            parts, self._pending = self._pending, []
            try:
                if not self._has_failed:
                    await asyncio.to_thread(self._append, parts)
            except OSError:  # the disk is full: what was written is a beginning, and said to be one
                self._left, self._has_failed = 0, True
            self._pending_bytes = sum(map(len, self._pending))
            self._resume()

    def _append(self, parts: Sequence[bytes]) -> None:
        if self._file is None:
            self._file = self._files.create()
        rest = memoryview(b"".join(parts))
        while rest:
            written = os.write(self._file[1], rest)
            self._written += written
            rest = rest[written:]


def with_mark(
    output: bytes, head_bytes: int, *, total_bytes: int, line_ends: int, file: OutputFile | None
) -> str:
    """Return the head and the tail of an output as text, with a line between them on what is not.

    The cut falls on line ends, unless one side is a part of one line: without the mark, the last
    line of the head and the first of the tail would be read as one, which never existed.

    Args:
        output: The head and the tail.
        head_bytes: How much of it is the head.
        total_bytes: The size of the whole output.
        line_ends: How many line ends the whole output has.
        file: Where the whole output is.
    """
    head, tail = output[:head_bytes], output[head_bytes:]
    head = head[: head.rfind(b"\n") + 1] or _without_last_half_character(head)
    tail = tail[tail.find(b"\n") + 1 :] or _without_first_half_character(tail)
    lost_bytes = total_bytes - len(head) - len(tail)
    lost_lines = line_ends - head.count(b"\n") - tail.count(b"\n")
    lost = f"{lost_bytes} bytes ({lost_lines} lines)" if lost_lines else f"{lost_bytes} bytes"
    mark = f"[... {lost} of the output are left out here. {_where(file, total_bytes)} ...]"
    parts = (head.removesuffix(b"\n"), mark.encode(), tail)
    return b"\n".join(part for part in parts if part).decode(errors="replace")


def _without_last_half_character(head: bytes) -> bytes:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(head)
    return head.removesuffix(decoder.getstate()[0])


def _without_first_half_character(tail: bytes) -> bytes:
    at = 0
    while at < min(3, len(tail)) and tail[at] in _CONTINUATION:
        at += 1
    return tail[at:]


def _where(file: OutputFile | None, total_bytes: int) -> str:
    if file is None:
        return "The whole output could not be kept: write it to a file, and read that in parts."
    which = "All of it is"
    if file.size_bytes < total_bytes:
        which = f"Only its first {file.size_bytes} bytes are"
    return f"{which} in {file.path}: use read_file, grep or the shell."
