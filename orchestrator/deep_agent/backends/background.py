"""What commands of this machine leave running, and what that writes.

A process must neither wait for its output to be read nor die because nobody reads it. So one thread
of this program reads the outputs that ended commands' processes hold open, whichever event loop has
started them, until they are closed.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from fanout.orchestrator.deep_agent.backends.bounded_output import OutputFile, OutputFiles

MAX_ROLLING_BYTES = 2 * 1024**2
"""The most that is kept of what a command's processes write in the background: what a person reads
of a log, and small enough that a machine can keep hundreds."""

MAX_NAMED_PROCESSES = 8
"""The most processes in the background that a result names; the others are counted."""

MAX_COMMAND_LINE = 200
"""Characters of a process's command line: enough to recognize it."""

_HEAD_BYTES, _TAIL_BYTES = 256 * 1024, 1024**2
_READ_BYTES = 256 * 1024
"""The size of one read from a pipe; a pipe's buffer is smaller."""
_LEFT_OUT = b"\n[... a part of the output is left out here ...]\n"


@dataclass(frozen=True, kw_only=True)
class LeftProcess:
    """A process that a command left running."""

    pid: int
    command_line: str
    """What it was started as, in one line, shortened; the command may have made it up."""

    @classmethod
    def described(cls, pid: int, words: bytes) -> LeftProcess:
        """Return a process with what `/proc/PID/cmdline` says of it."""
        text = " ".join(words.replace(b"\0", b" ").decode(errors="replace").split())
        shown = "".join(one if one.isprintable() else "?" for one in text[:MAX_COMMAND_LINE])
        return cls(pid=pid, command_line=shown)


@dataclass(frozen=True, kw_only=True)
class LeftRunning:
    """Processes that continue after their command, until they or their sandbox are ended."""

    processes: tuple[LeftProcess, ...] = ()
    """The first of them."""
    total: int = 0
    """How many there are, without those that left the command's session and environment."""
    output_path: str = ""
    """A file, for the file tools and for the shell, with the beginning and the end of what they
    write from now on. Empty where they do not hold the command's output, or it cannot be kept."""

    def __str__(self) -> str:
        """Return what an agent needs to know: which processes, how to stop them, their output."""
        named = [f"{process.pid} ({process.command_line})" for process in self.processes]
        if self.total > len(named):
            named.append(f"{self.total - len(named)} more")
        text = f"Still running: {', '.join(named)}." if named else "A process is still running."
        if self.processes:
            text += f" Stop with: kill {' '.join(str(one.pid) for one in self.processes)}."
        if self.output_path:
            text += f" Its output from here on is kept in {self.output_path}."
        return text


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
                tail = os.pread(self._descriptor, _TAIL_BYTES, size - _TAIL_BYTES)
                os.ftruncate(self._descriptor, _HEAD_BYTES)
                os.write(self._descriptor, _LEFT_OUT + tail[tail.find(b"\n") + 1 :])
            os.write(self._descriptor, data)

    def close(self) -> None:
        """End the record; it counts among the outputs that are kept."""
        if self._descriptor is None or self._files is None:
            return
        size = os.fstat(self._descriptor).st_size
        os.close(self._descriptor)
        self._descriptor = None
        self._files.keep(OutputFile(path=self.path, size_bytes=size))


class _Reader:
    """The thread that reads outputs; there is one as long as there are outputs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._poll = select.epoll()
        self._files: dict[int, RollingFile] = {}

    def read(self, descriptors: Sequence[int], file: RollingFile) -> None:
        """Read pipes until they are closed, then close them here, and the file with the last."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # as after a fork
                self._poll, self._files = select.epoll(), {}
                self._thread = threading.Thread(
                    target=self._run, name="background-output", daemon=True
                )
            for descriptor in descriptors:
                self._files[descriptor] = file
                self._poll.register(descriptor, select.EPOLLIN)
            if not self._thread.is_alive():
                self._thread.start()

    def _run(self) -> None:
        while True:
            for descriptor, _events in self._poll.poll():
                try:
                    data = os.read(descriptor, _READ_BYTES)
                except BlockingIOError:
                    continue
                if data:
                    self._files[descriptor].add(data)
                elif self._is_last(descriptor):
                    return

    def _is_last(self, descriptor: int) -> bool:
        """Let a closed pipe go; return whether there is no other, and the thread ends."""
        with self._lock:
            self._poll.unregister(descriptor)
            os.close(descriptor)
            file = self._files.pop(descriptor)
            if file not in self._files.values():
                file.close()
            if not self._files:
                self._poll.close()
                self._thread = None
            return not self._files


_READER = _Reader()


def read_on(descriptors: Sequence[int], file: RollingFile) -> None:
    """Read pipes whose command has ended, as long as its processes hold them open.

    Args:
        descriptors: The pipes' ends for reading, which do not block; they are closed here.
        file: Where what is read is kept; it is closed with the last of them.
    """
    if descriptors:
        _READER.read(descriptors, file)
