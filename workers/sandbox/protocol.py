"""The seam between a job and the place where its commands run.

Two kinds of trouble are kept apart by type. A command that fails, is killed or times out is a
`CommandResult`; a file that is not there is an `OSError` subclass (`FileNotFoundError`,
`FileExistsError`, `IsADirectoryError`, `PermissionError` …). A sandbox that fails is a
`workers.sandbox.errors` failure, raised: an agent must never take a dead container for its
command's output.

A new provider is finished when it passes `tests/contract/test_sandbox.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, Protocol

from orchestrator.jobs.spec import Limits

WORKSPACE = "/workspace"
"""Where the job's files are, for its shell and for its file tools alike."""

DEFAULT_COMMAND_TIMEOUT_SECONDS = 120.0
"""What a command gets when nobody says more: S2's limit of the execute tool."""

DEFAULT_OUTPUT_BYTES = 100_000
"""How much of a command's output is kept, head and tail: S2's limit of the execute tool."""

LAST_WORDS_CHARACTERS = 500
"""How much of its error output a process's end is told with: a traceback's last lines."""

OutputSink = Callable[[bytes], Awaitable[None]]
"""Receives a command's output while it runs, in order, at most what the output cap lets through."""


@dataclass(frozen=True, kw_only=True)
class SandboxSpec:
    """What a sandbox is opened with."""

    job_id: str
    attempt: int
    image: str
    limits: Limits
    """Every field set; `Limits.over` has filled the gaps."""
    snapshot: str | None = None
    """The blob id of the workspace's archive; None starts empty."""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command: an argv, or a string for `/bin/sh -c`."""

    argv: Sequence[str] | str
    cwd: str = WORKSPACE
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    timeout_seconds: float = DEFAULT_COMMAND_TIMEOUT_SECONDS
    max_output_bytes: int = DEFAULT_OUTPUT_BYTES
    """Of output and of error output each; what lies between head and tail is dropped."""
    merge_stderr: bool = True
    """Error output goes into `output`, in the order in which it was written."""


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """How a command ended. It ran, whatever its exit code says."""

    exit_code: int
    """-N when signal N killed it; 127 when it could not be started."""
    output: bytes
    error_output: bytes = b""
    total_bytes: int
    """How much output it wrote; more than `len(output)` means the middle was dropped."""
    timed_out: bool = False
    """The time was over and every process of the command was killed."""
    out_of_memory: bool = False
    """The kernel killed a process of the sandbox for memory while the command ran."""
    seconds: float = 0.0

    @property
    def truncated(self) -> bool:
        """Whether the middle of the output was dropped."""
        return self.total_bytes > len(self.output)


class ProcessEnded(EOFError):
    """A live process is over; the text says how, with the last words of its error output."""

    def __init__(self, result: CommandResult) -> None:
        said = (result.error_output or result.output).decode(errors="replace").strip()
        words = f": {said[-LAST_WORDS_CHARACTERS:]}" if said else ""
        super().__init__(f"it ended with exit code {result.exit_code}{words}")
        self.result = result


class Process(Protocol):
    """A process that runs beside its caller. Both directions are bounded: who is ahead waits."""

    async def send(self, data: bytes) -> None:
        """Write to its standard input; waits while it does not read.

        Raises:
            ProcessEnded: it has ended.
            SandboxFailure: the sandbox failed.
        """
        ...

    async def receive(self) -> bytes:
        """The next of its standard output, at least one byte.

        Raises:
            ProcessEnded: it has ended, and all of its output has been received.
            SandboxFailure: the sandbox failed.
        """
        ...

    @property
    def error_output(self) -> bytes:
        """The beginning of its error output as far as it has come.

        Head and tail once it has ended.
        """
        ...


EntryKind = Literal["file", "directory", "symlink", "other"]


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """A path as `lstat` sees it."""

    path: str
    """Absolute, in the sandbox."""
    kind: EntryKind
    size_bytes: int
    modified_at: float
    """Seconds since the epoch."""
    mode: int


@dataclass(frozen=True, kw_only=True)
class GrepHit:
    """A line that contains the text looked for."""

    path: str
    line_number: int
    """From 1."""
    line: str
    """At most 2,000 characters; undecodable bytes are replaced."""


@dataclass(frozen=True, kw_only=True)
class Walked:
    """The files below a directory, sorted by path, or as many as the budget allowed."""

    entries: tuple[FileEntry, ...]
    complete: bool
    """False when the number or the time ran out first."""


@dataclass(frozen=True, kw_only=True)
class Grepped:
    """The hits, or as many as the budget allowed."""

    hits: tuple[GrepHit, ...]
    complete: bool


class Sandbox(Protocol):
    """A running sandbox. Paths are absolute in it; links are followed as its own processes would.

    Every method may raise a `SandboxFailure`; after one that is not retryable in place the sandbox
    is dead and every later call fails too.
    """

    kind: Literal["docker", "local"]
    home: str
    """The job's HOME, outside of its workspace, by one path for commands and file operations."""
    files_id: str
    """Names the files of its workspace: the same as the last attempt's only if it began with
    those."""

    async def run(self, command: Command, on_output: OutputSink | None = None) -> CommandResult:
        """Run a command to its end.

        When its time is over or the caller is cancelled, kill all of it.
        """
        ...

    def open_process(self, command: Command) -> AbstractAsyncContextManager[Process]:
        """A command that runs while the context is open; when it ends, all of it is killed.

        It has the limits, user and environment of every command, but no time limit. Its output goes
        to the caller, so `max_output_bytes` is about its error output only; `stdin` is sent by the
        caller.
        """
        ...

    async def read(self, path: str, offset: int = 0, max_bytes: int | None = None) -> bytes:
        """A file's bytes from `offset`; OSError when it is not a readable file."""
        ...

    async def write(
        self, path: str, data: bytes, *, create_only: bool = False, mode: int | None = None
    ) -> None:
        """Put a whole file in place atomically.

        Directories are made, an existing file keeps its mode.

        `create_only` raises FileExistsError, atomically, when anything is at the path.
        """
        ...

    async def delete(self, path: str) -> None:
        """Remove a file, a link or a whole directory."""
        ...

    async def stat(self, path: str) -> FileEntry:
        """One path; FileNotFoundError when nothing is there."""
        ...

    async def list(self, path: str) -> tuple[FileEntry, ...]:
        """A directory's entries, sorted by name; NotADirectoryError for a file."""
        ...

    async def walk(self, path: str, *, max_entries: int, timeout_seconds: float) -> Walked:
        """All files below a directory, links not followed, `.git` directories left out."""
        ...

    async def grep(
        self,
        text: str,
        path: str,
        *,
        only: Sequence[str] | None = None,
        max_hits: int,
        timeout_seconds: float,
    ) -> Grepped:
        """Lines that contain `text` literally, in a file or below a directory, or in the files of `only`.

        Binary files (a NUL in the first 8 KiB) and `.git` directories are left out; links are not
        followed.
        """
        ...

    async def changes(self) -> IO[bytes]:
        """The change bundle (see `orchestrator.jobs.changes`) of the workspace against its snapshot.

        An open temporary file, read from its start; the caller closes it. Bounded by the job's disk
        limit.
        """
        ...


class SandboxProvider(Protocol):
    """Opens sandboxes; one object a worker process."""

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        """A sandbox for one attempt, its workspace filled.

        Gone, processes and all, when the context ends.

        Where the provider can, the job's files outlive it until `discard`, for the next attempt.
        """
        ...

    async def discard(self, job_id: str) -> None:
        """Delete what is left of a job that has ended.

        Containers, volumes, upper layers, folders.
        """
        ...

    async def reap(self, is_live: Callable[[str], Awaitable[bool]]) -> int:
        """Remove what is left of jobs for which `is_live(job_id)` is false.

        How many things went.
        """
        ...

    async def close(self) -> None:
        """Give back what the provider itself holds."""
        ...


SnapshotSource = Callable[[str], Awaitable[Path]]
"""Fetches a snapshot archive by its blob id to a local file; it may be a cache and is not to be
changed."""
