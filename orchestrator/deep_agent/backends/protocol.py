"""The protocol between the file tools and the storage of files.

A backend stores bytes under normalised absolute paths and knows nothing of lines, globs, limits or
messages: those are `orchestrator.deep_agent.tools.files`, once for all backends. What is wrong with
a path is an `OSError` of the fitting class (`FileNotFoundError`, `FileExistsError`,
`IsADirectoryError`, `NotADirectoryError`, `PermissionError`); anything else that a backend raises
is a failure of the backend, not of the agent.

A new backend is finished when it passes `tests/contract` as one of the backends in its
`conftest.py`.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from .command_result import (
    LeftRunning,
    OutputFile,
    with_mark,
)

MAX_FILE_BYTES = 10 * 1024**2
"""The largest file that is read or written as a whole: a worker has memory for many copies."""

EntryKind = Literal["file", "directory", "symlink", "other"]

OutputSink = Callable[[bytes], Awaitable[None]]
"""Receives a command's output while it runs, in order, up to the limit on its size."""


class AccessRefused(PermissionError):
    """A rule keeps the agent from a file; the text is a sentence for the agent."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One path; a link is described, not followed, except by `stat`."""

    path: str
    kind: EntryKind
    size_bytes: int = 0
    modified_at: float = 0.0
    """Seconds since the epoch."""
    mode: int = 0
    """The permission bits; 0 where a backend has none."""


@dataclass(frozen=True, kw_only=True)
class Walk:
    """The files below a directory, sorted by path, up to the limits."""

    entries: tuple[Entry, ...]
    complete: bool = True
    """False if the limit on entries or time was reached first."""

    def first(self, entries: Sequence[Entry], count: int) -> Walk:
        """Return a walk with the first of these entries; it is complete if this one is and all fit.

        Args:
            entries: What remains of this walk's entries, or is added to them, sorted by path.
            count: The maximum number of entries.
        """
        complete = self.complete and len(entries) <= count
        return Walk(entries=tuple(entries[:count]), complete=complete)


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A line that contains the searched text."""

    path: str
    line_number: int
    """The number of the line, from 1."""
    line: str


@dataclass(frozen=True, kw_only=True)
class Hits:
    """The matching lines, in any order of files, up to the limits."""

    hits: tuple[Hit, ...]
    complete: bool = True
    """False if a limit was reached before everything was searched."""
    unsearched: int = 0
    """How many files were left out: binary ones, unreadable ones, the one at which time was up."""
    unsearched_paths: tuple[str, ...] = ()
    """The first of them."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """The outcome of a command that ran, with any exit code."""

    exit_code: int
    """-N when signal N killed it (see `shell_code`); 127 when it could not be started."""
    output: bytes
    """Standard output, including error output unless that was requested separately."""
    error_output: bytes = b""
    total_bytes: int
    """The size of its output; if larger than `len(output)`, the middle was dropped."""
    head_bytes: int = 0
    """How much of an `output` whose middle was dropped is its beginning."""
    line_ends: int = 0
    """How many line ends the whole output has."""
    output_file: OutputFile | None = None
    """The whole output, where its middle was dropped and it could be kept."""
    timed_out: bool = False
    """The time limit was reached and every process of the command was killed."""
    out_of_memory: bool = False
    """The kernel killed a process for memory while the command ran."""
    notice: str = ""
    """A sentence about another limit that stopped something while the command ran."""
    left_running: LeftRunning | None = None
    """What the command started and left running; None when it left nothing, or was stopped."""
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """The output as text, with undecodable bytes replaced, and a line where it was cut."""
        if not self.truncated:
            return self.output.decode(errors="replace")
        return with_mark(
            self.output,
            self.head_bytes,
            total_bytes=self.total_bytes,
            line_ends=self.line_ends,
            file=self.output_file,
        )

    @property
    def shell_code(self) -> int:
        """The exit code as a shell reports it: 128+N when signal N killed the command."""
        return self.exit_code if self.exit_code >= 0 else 128 - self.exit_code

    @property
    def killed_by(self) -> str:
        """The sentence that names the signal which killed the command; empty when none did.

        Also empty when its time was over. A shell that is killed itself says nothing.
        """
        if self.exit_code >= 0 or self.timed_out:
            return ""
        number = -self.exit_code
        try:
            name = f"{signal.Signals(number).name}, signal {number}"
        except ValueError:
            name = f"signal {number}"
        return f"The command was killed by {name}."

    @property
    def truncated(self) -> bool:
        """Whether the middle of the output was dropped."""
        return self.total_bytes > len(self.output)


class Backend(Protocol):
    """Files under absolute paths without `.`, `..` or double slashes."""

    @property
    def search_root(self) -> str:
        """The directory that glob and grep search when they are asked for `/`.

        The agent's own files.
        """

    async def stat(self, path: str) -> Entry:
        """Return the entry at a path, following links.

        Raises:
            FileNotFoundError: The path does not exist.
        """

    async def list(self, path: str) -> Sequence[Entry]:
        """Return a directory's entries, sorted by path.

        Raises:
            FileNotFoundError: The path does not exist.
            NotADirectoryError: It is a file.
        """

    async def read_bytes(self, path: str, max_bytes: int, *, offset: int = 0) -> bytes:
        """Return the `max_bytes` bytes of a file that follow the first `offset` ones, if any.

        Raises:
            FileNotFoundError: The path does not exist.
            IsADirectoryError: It is a directory.
        """

    async def write_bytes(self, path: str, data: bytes, *, create_only: bool = False) -> None:
        """Write a whole file atomically, and create its directories.

        An existing file keeps its mode.

        `create_only` raises FileExistsError, atomically, when anything is at the path.
        """

    async def delete(self, path: str) -> None:
        """Remove a file, a link or a whole directory.

        Raises:
            FileNotFoundError: The path does not exist.
        """

    async def walk(self, path: str, *, max_entries: int, timeout_seconds: float) -> Walk:
        """Return all files below a directory, without following links, except in `.git`."""

    async def grep(
        self,
        text: str,
        path: str,
        *,
        only: Sequence[str] | None,
        max_hits: int,
        timeout_seconds: float,
    ) -> Hits:
        """Return the lines with a literal text in a file, a directory or the files of `only`.

        Binary files (a NUL in the first 8 KiB) are left out and counted; files of any size are
        searched. `.git` directories are left out; links are not followed.
        """


@runtime_checkable
class Shell(Protocol):
    """A backend that can also run commands on its files."""

    async def execute(
        self,
        command: str,
        timeout_seconds: float,
        max_output_bytes: int,
        on_output: OutputSink | None = None,
    ) -> Execution:
        """Run a shell command to its end; bash runs it where there is bash, else sh.

        When its time is over or the caller is cancelled, kill all of it, and nothing that earlier
        commands left running. Processes of a command that was not killed continue.

        `on_output` is given the output while it runs; what it raises ends the command and the call.
        """


BackendFactory = Callable[[Any], Backend]
"""Creates a backend from a session's state, at each tool call."""
