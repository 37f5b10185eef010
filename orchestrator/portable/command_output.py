"""A stream of output: its beginning and end in memory, and all of it in a file if they are not all.

The files are kept where the command runs, outside of the agent's files.
"""

from __future__ import annotations

import itertools
import os
from contextlib import suppress

TYPE_CHECKING = False  # typing.TYPE_CHECKING without the import, which every start would pay for
if TYPE_CHECKING:
    from collections.abc import Callable

MAX_OUTPUT_FILE_BYTES = 64 << 20
"""The most that is kept of one command's output: ten times the log of a large build."""

MAX_OUTPUT_FILES_BYTES = 256 << 20
"""The most that is kept of all outputs of one agent; the oldest are deleted first."""

MAX_ROLLING_BYTES = 2 << 20
"""The most that is kept of what a command's processes write in the background: what a person reads
of a log, and small enough that a machine can keep hundreds."""

_ROLLING_HEAD_BYTES, _ROLLING_TAIL_BYTES = 256 << 10, 1 << 20
_LEFT_OUT = b"\n[... a part of the output is left out here ...]\n"


class BoundedOutput:
    """Head and tail of a stream, and the length of the whole.

    Holds little more than its limits, however much is added.
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
            descriptor, to read and to append. The file is written through that only: what a job
            puts in its place is never opened.
        delete: Deletes the file at a path.
    """

    def __init__(
        self, folder: str, create: Callable[[str], int], delete: Callable[[str], None]
    ) -> None:
        self._folder, self._create, self._delete = folder, create, delete
        self._numbers = itertools.count(1)
        self._kept: list[tuple[str, int]] = []

    def create(self) -> tuple[str, int]:
        """Create a file; return its path and its descriptor.

        Raises:
            OSError: It cannot be created.
        """
        # The random part: an earlier process may have left files in the folder.
        path = f"{self._folder}/{next(self._numbers)}-{os.urandom(3).hex()}.txt"
        return path, self._create(path)

    def keep(self, path: str, size_bytes: int) -> None:
        """Count a finished file, and delete the oldest ones that exceed the limit on all."""
        self._kept.append((path, size_bytes))
        total = sum(size for _path, size in self._kept)
        while total > MAX_OUTPUT_FILES_BYTES:
            oldest, size = self._kept.pop(0)
            total -= size
            with suppress(OSError):  # whoever runs commands may have deleted it
                self._delete(oldest)


class WholeOutput:
    """The whole of one output, in a file that is created when there is something to write.

    The methods block. A full disk ends the record: what is in the file is a beginning then.
    """

    def __init__(self, files: OutputFiles) -> None:
        self._files = files
        self.path = ""
        """Empty until there is a file."""
        self.size_bytes = 0
        self._descriptor: int | None = None
        self._left = MAX_OUTPUT_FILE_BYTES

    @property
    def is_full(self) -> bool:
        """Whether nothing more is recorded: because of the limit, or of the disk."""
        return not self._left

    def add(self, data: bytes, before: BoundedOutput) -> None:
        """Record data that follows what is in `before`, if that will not be all any more."""
        if self._descriptor is not None:
            self.append(data)
        elif before.is_cut_by(data):
            self.append(before.content() + data)

    def append(self, data: bytes) -> None:
        """Record data."""
        if not self._left:
            return
        try:
            if self._descriptor is None:
                self.path, self._descriptor = self._files.create()
            rest = memoryview(data)[: self._left]
            while rest:
                written = os.write(self._descriptor, rest)
                self.size_bytes += written
                self._left -= written
                rest = rest[written:]
        except OSError:
            self._left = 0

    def close(self) -> None:
        """End the record."""
        self._left = 0
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            self._files.keep(self.path, self.size_bytes)


class RollingFile:
    """The beginning and the end of an output without a limit, in a file of bounded size.

    It blocks, and never for longer than the disk does: what has no room there is dropped.

    Args:
        files: Where it is made; None keeps nothing.
    """

    def __init__(self, files: OutputFiles | None) -> None:
        self._files = files
        self.path = ""
        """Empty where nothing is kept."""
        self._descriptor: int | None = None
        if files is not None:
            with suppress(OSError):
                self.path, self._descriptor = files.create()

    def add(self, data: bytes) -> None:
        """Append data; the middle of the file makes room for it."""
        if self._descriptor is None:
            return
        with suppress(OSError):  # the disk is full; it may have room again later
            size = os.fstat(self._descriptor).st_size  # the command may have shortened it
            if size + len(data) > MAX_ROLLING_BYTES:
                tail = os.pread(self._descriptor, _ROLLING_TAIL_BYTES, size - _ROLLING_TAIL_BYTES)
                os.ftruncate(self._descriptor, _ROLLING_HEAD_BYTES)
                os.write(self._descriptor, _LEFT_OUT + tail[tail.find(b"\n") + 1 :])
            os.write(self._descriptor, data)

    def close(self) -> None:
        """End the record; it counts among the outputs that are kept."""
        if self._descriptor is None or self._files is None:
            return
        size = os.fstat(self._descriptor).st_size
        os.close(self._descriptor)
        self._descriptor = None
        self._files.keep(self.path, size)
