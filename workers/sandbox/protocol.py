"""The seam between a job and the place where its commands run.

Two kinds of trouble are kept apart by type. A command that fails, is killed or times out is a
`Execution`; a file that is not there is an `OSError` subclass (`FileNotFoundError`,
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

from orchestrator.deep_agent.backends.protocol import (
    Backend,
    Entry,
    Execution,
    OutputSink,
    Shell,
)
from orchestrator.jobs.spec import Limits
from workers.sandbox.process import Process

WORKSPACE = "/workspace"
"""Where the job's files are, for its shell and for its file tools alike."""

DEFAULT_COMMAND_TIMEOUT_SECONDS = 120.0
"""What a command gets when nobody says more: S2's limit of the execute tool."""

DEFAULT_OUTPUT_BYTES = 100_000
"""How much of a command's output is kept, head and tail: S2's limit of the execute tool."""


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


class Sandbox(Backend, Shell, Protocol):
    """A running sandbox: a deep agent's files and shell, and what a job needs beside them.

    Paths are absolute in it; links are followed as its own processes would. Every method may raise a
    `SandboxFailure`; after one that is not retryable in place the sandbox is dead and every later call
    fails too.
    """

    kind: Literal["docker", "local"]
    home: str
    """The job's HOME, outside of its workspace, by one path for commands and file operations."""
    files_id: str
    """Names the files of its workspace: the same as the last attempt's only if it began with
    those."""

    async def run(self, command: Command, on_output: OutputSink | None = None) -> Execution:
        """Run a command to its end.

        When its time is over or the caller is cancelled, kill all of it.
        """
        ...

    async def execute(
        self,
        command: str,
        timeout_seconds: float,
        max_output_bytes: int,
        on_output: OutputSink | None = None,
    ) -> Execution:
        """See `Shell.execute`."""
        wanted = Command(
            argv=command, timeout_seconds=timeout_seconds, max_output_bytes=max_output_bytes
        )
        return await self.run(wanted, on_output)

    def open_process(self, command: Command) -> AbstractAsyncContextManager[Process]:
        """A command that runs while the context is open; when it ends, all of it is killed.

        It has the limits, user and environment of every command, but no time limit. Its output goes
        to the caller, so `max_output_bytes` is about its error output only; `stdin` is sent by the
        caller.
        """
        ...

    async def read_bytes(
        self, path: str, max_bytes: int | None = None, *, offset: int = 0
    ) -> bytes:
        """See `Backend.read_bytes`; None reads to the end."""
        ...

    async def write_bytes(
        self, path: str, data: bytes, *, create_only: bool = False, mode: int | None = None
    ) -> None:
        """See `Backend.write_bytes`; `mode` sets the permission bits."""
        ...

    async def lstat(self, path: str) -> Entry:
        """One path, a link not followed.

        Raises:
            FileNotFoundError: nothing is there.
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
