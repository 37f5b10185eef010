"""What is kept of commands' outputs. Runs inside: see `resident`.

It imports nothing but `os`: every start pays for it. The worker's own is
`orchestrator.deep_agent.backends.bounded_output`.
"""

# ruff: noqa: PTH108 - importing pathlib would cost every start 5 ms

from __future__ import annotations

import os

FOLDER = "/command_output"
"""Where whole outputs are kept: on the job's disk, outside of its workspace."""
MAX_FILE_BYTES = 64 << 20
"""The most that is kept of one command's output: ten times the log of a large build."""
MAX_FILES_BYTES = 256 << 20
"""The most that is kept of all outputs; the oldest are deleted first."""
MAX_ROLLING_BYTES = 2 << 20
"""The largest file with the output of a process in the background: what a person reads of a log.
With `commands.MAX_BACKGROUNDS` of them, half of `MAX_FILES_BYTES`."""
_ROLLING_HEAD_BYTES, _ROLLING_TAIL_BYTES = 256 << 10, 1 << 20
_ROLLED = b"\n[... a part of the output is left out here ...]\n"


class BoundedOutput:
    """Head and tail of a stream of output, and the length of the whole.

    A copy of the worker's, see there.
    """

    def __init__(self, max_bytes: int) -> None:
        self.total = self.line_ends = 0
        self._head_bytes = max_bytes // 2
        self._tail_bytes = max_bytes - self._head_bytes
        self._head, self._tail = bytearray(), bytearray()

    @property
    def head_bytes(self) -> int:
        """How much of `content()` is the beginning of the stream; the rest is its end."""
        return len(self._head)

    def is_cut_by(self, data: bytes) -> bool:
        """Return whether `content()` will not be all any more once this data is added."""
        return self.total + len(data) > self._head_bytes + self._tail_bytes

    def add(self, data: bytes) -> None:
        """Append data; what belongs neither to the head nor to the tail is dropped."""
        self.total += len(data)
        self.line_ends += data.count(b"\n")
        room = self._head_bytes - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._tail_bytes + 65536:
            del self._tail[: len(self._tail) - self._tail_bytes]

    def content(self) -> bytes:
        """Return everything, or the head and the tail."""
        return bytes(self._head + self._tail[max(0, len(self._tail) - self._tail_bytes) :])


class OutputFile:
    """The whole of one output, in a file that is created when the output exceeds its limit."""

    def __init__(self, files: OutputFiles, number: int) -> None:
        self._files = files
        self.name = f"{number}-{os.urandom(3).hex()}.txt"
        self.size = 0
        self._descriptor: int | None = None
        self._left = MAX_FILE_BYTES

    def add(self, data: bytes, before: BoundedOutput) -> None:
        """Record data that follows what is in `before`, if that will not be all any more.

        A full disk ends the record: what is there is a beginning, and said to be one.
        """
        try:
            if self._descriptor is None:
                if not self._left or not before.is_cut_by(data):
                    return
                self._descriptor = self._files.create(self.name)
                data = before.content() + data
            rest = memoryview(data)[: self._left]
            while rest:
                written = os.write(self._descriptor, rest)
                self.size += written
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
            self._files.keep(self.name, self.size)


class RollingFile:
    """The beginning and the end of an output without a limit, in a file of bounded size.

    A copy of the worker's (`orchestrator.deep_agent.backends.background`), see there.
    """

    def __init__(self, files: OutputFiles, number: int) -> None:
        self._files = files
        self.name = f"{number}-{os.urandom(3).hex()}.txt"
        """Empty where the file could not be created."""
        self._descriptor: int | None = None
        try:
            self._descriptor = files.create(self.name, os.O_RDWR | os.O_APPEND)
        except OSError:
            self.name = ""

    def add(self, data: bytes) -> None:
        """Append data; the middle of the file makes room for it."""
        if self._descriptor is None:
            return
        try:
            size = os.fstat(self._descriptor).st_size  # the job may have shortened it
            if size + len(data) > MAX_ROLLING_BYTES:
                tail = os.pread(self._descriptor, _ROLLING_TAIL_BYTES, size - _ROLLING_TAIL_BYTES)
                os.ftruncate(self._descriptor, _ROLLING_HEAD_BYTES)
                os.write(self._descriptor, _ROLLED + tail[tail.find(b"\n") + 1 :])
            os.write(self._descriptor, data)
        except OSError:  # the disk is full; it may have room again later
            return

    def close(self) -> None:
        """End the record."""
        if self._descriptor is not None:
            size = os.fstat(self._descriptor).st_size
            os.close(self._descriptor)
            self._descriptor = None
            self._files.keep(self.name, size)


class OutputFiles:
    """The files with whole outputs.

    They are written through descriptors: whatever a job puts in their place is never opened.
    """

    def __init__(self, folder: str = FOLDER) -> None:
        self._folder = folder
        self._kept: list[tuple[str, int]] = []

    def create(self, name: str, access: int = os.O_WRONLY) -> int:
        """Create a file and return its descriptor."""
        flags = access | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(f"{self._folder}/{name}", flags, 0o644)

    def keep(self, name: str, size: int) -> None:
        """Count a file, and delete the oldest ones that exceed the limit on all."""
        self._kept.append((name, size))
        while sum(size for _name, size in self._kept) > MAX_FILES_BYTES:
            oldest, _size = self._kept.pop(0)
            try:
                os.unlink(f"{self._folder}/{oldest}")
            except OSError:
                continue  # the job has deleted it
