"""The interface between a job and the sandbox in which its commands run.

Two kinds of errors are kept apart by type. A command that fails, is killed or times out is an
`Execution`; a missing file is an `OSError` subclass (`FileNotFoundError`, `FileExistsError`,
`IsADirectoryError`, `PermissionError` …). A sandbox that fails raises a failure of
`workers.sandbox.errors`: an agent must never mistake a dead container for its command's output.

A new provider is finished when it passes `tests/contract/test_sandbox.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, Protocol, TypeVar

from fanout.orchestrator.deep_agent import (
    Backend,
    Entry,
    Execution,
    OutputSink,
    Shell,
)
from fanout.orchestrator.jobs.changes import ChangeBundle
from fanout.orchestrator.jobs.spec import Limits
from fanout.orchestrator.portable.command_output import BoundedOutput

from .credential import Credential
from .environment import Environments
from .model_meter import ModelMeter

T = TypeVar("T")

DRAIN_SECONDS = 1.0
"""How long to wait for the rest of an ended process's output while something that it left behind
holds it open."""

QUOTED_CHARACTERS = 500
"""How much of the error output the end of a process is reported with: a traceback's last lines."""
WORKSPACE = "/workspace"
"""The path of the job's files, for its shell and for its file tools."""

DEFAULT_COMMAND_TIMEOUT_SECONDS = 120.0
"""The time limit of a command that names none: S2's limit of the execute tool."""

DEFAULT_OUTPUT_BYTES = 100_000
"""How much of a command's output is kept, head and tail: S2's limit of the execute tool."""


class ProcessEnded(EOFError):
    """A process has ended; the message has its exit code and the end of its error output."""

    def __init__(self, result: Execution) -> None:
        output = (result.error_output or result.output).decode(errors="replace").strip()
        quoted = f": {output[-QUOTED_CHARACTERS:]}" if output else ""
        super().__init__(f"it ended with exit code {result.exit_code}{quoted}")
        self.result = result


class Channel(Protocol):
    """A process's standard input and output."""

    async def read(self) -> bytes:
        """Return the next output; empty at the end."""

    async def write(self, data: bytes) -> None:
        """Pass on input; waits while the process does not read it.

        Raises:
            OSError: the process does not read any more.
        """


class Process:
    """A running process. Both directions are bounded: the side that is ahead waits."""

    def __init__(self, channel: Channel, max_error_bytes: int) -> None:
        self._channel = channel
        self._errors = BoundedOutput.halves(max_error_bytes)
        self._running: asyncio.Task[Execution]

    def begin(self, work: Coroutine[Any, Any, Execution]) -> None:
        """Start it: `work` runs the command to its end, and ends it at once when cancelled."""
        self._running = asyncio.create_task(work)

    async def send(self, data: bytes) -> None:
        """Write to its standard input; waits while it does not read.

        Raises:
            ProcessEnded: it has ended.
            SandboxFailure: the sandbox failed.
        """
        if self._running.done():
            raise await self._end()
        await self._unless_ended(self._channel.write(data), 0.0)

    async def receive(self) -> bytes:
        """Return the next of its standard output, at least one byte.

        Raises:
            ProcessEnded: it has ended, and all of its output has been received.
            SandboxFailure: the sandbox failed.
        """
        data = await self._unless_ended(self._channel.read(), DRAIN_SECONDS)
        if not data:
            raise await self._end()
        return data

    @property
    def error_output(self) -> bytes:
        """Its error output so far; head and tail where it is longer than the limit."""
        if self._running.done() and not self._running.cancelled() and not self._running.exception():
            return self._running.result().error_output
        return self._errors.content()

    async def add_errors(self, part: bytes) -> None:
        """Collect error output."""
        self._errors.add(part)

    async def stop(self) -> None:
        """End the process and wait until it has ended."""
        self._running.cancel()
        await asyncio.wait({self._running})
        if not self._running.cancelled():
            self._running.exception()  # retrieved, or asyncio would log it

    async def _unless_ended(self, step: Awaitable[T], patience_seconds: float) -> T:
        """Return a step's result; after the end of the process the step has so many seconds."""
        stepping = asyncio.ensure_future(step)
        try:
            await asyncio.wait({stepping, self._running}, return_when=asyncio.FIRST_COMPLETED)
            if not stepping.done():
                await asyncio.wait({stepping}, timeout=patience_seconds)
            if stepping.done():
                with contextlib.suppress(OSError):  # it reads no more: it is ending
                    return stepping.result()
            raise await self._end()
        finally:
            stepping.cancel()

    async def _end(self) -> ProcessEnded:
        """Wait for the end and return it; SandboxFailure when the sandbox failed."""
        return ProcessEnded(await asyncio.shield(self._running))


@dataclass(frozen=True, kw_only=True)
class ConnectionRecord:
    """A connection that has ended, or one that was refused. It contains no path and no header."""

    host: str
    """Empty when the request named none."""
    port: int
    is_allowed: bool
    reason: str = ""
    """Why it was refused or cut; empty for one that ended normally."""
    is_unreachable: bool = False
    """It was refused because the host does not answer, or has no address."""
    sent_bytes: int = 0
    """The bytes sent to the host."""
    received_bytes: int = 0
    seconds: float = 0.0
    secret: str = ""
    """The name of the secret that the proxy put into its requests; empty for none."""


@dataclass(frozen=True, kw_only=True)
class NetworkLimitReached:
    """The job has used its budget of bytes; reported once."""

    limit_bytes: int
    used_bytes: int


TrafficRecord = ConnectionRecord | NetworkLimitReached
OnTraffic = Callable[[TrafficRecord], None]
"""Receives the records of a sandbox; must not wait or raise."""


def ignore_traffic(_record: TrafficRecord) -> None:
    """Drop a record."""


@dataclass(frozen=True, kw_only=True)
class SandboxSpec:
    """The arguments for opening a sandbox."""

    job_id: str
    attempt: int
    image: str
    limits: Limits
    """Every field is set: see `Limits.over`."""
    agent: str = ""
    """The job's: jobs of one agent are alike in whether they use their sandbox."""
    snapshot: str | None = None
    """The blob id of the workspace's archive; None starts with an empty workspace."""
    layers: tuple[str, ...] = ()
    """The blob ids of the change bundles that are applied to it, in order."""
    environment: str = ""
    """The key of the prepared environment below these files; empty: none."""
    labels: Mapping[str, str] = field(default_factory=dict)
    credentials: tuple[Credential, ...] = ()
    """What the proxy puts into requests to hosts of the limit `network`."""
    network_used_bytes: int = 0
    """What earlier attempts have used of the limit `network_bytes`."""
    on_traffic: OnTraffic = ignore_traffic
    """Receives a record of each connection to a host, when it has ended or was refused."""
    meter: ModelMeter | None = None
    """Reads what models answer at hosts with credentials; None: nothing does."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command: an argv, or a string for bash, or for sh where there is no bash."""

    argv: Sequence[str] | str
    cwd: str = WORKSPACE
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    timeout_seconds: float = DEFAULT_COMMAND_TIMEOUT_SECONDS
    max_output_bytes: int = DEFAULT_OUTPUT_BYTES
    """The most bytes of output and of error output each; what lies between head and tail is
    dropped."""
    merge_stderr: bool = True
    """Error output is part of `output`, in the order in which it was written."""
    keep_output: bool = False
    """An output above the limit is kept as a whole, in a file outside of the workspace."""


class Sandbox(Backend, Shell, Protocol):
    """A running sandbox: a deep agent's backend with a shell, and what a job needs besides.

    Paths are absolute in the sandbox; links are followed as its own processes would follow them.
    File operations have path texts (`orchestrator.path_text`), commands what `os` takes.
    Every method may raise a `SandboxFailure`; afterwards the sandbox is dead and every later call
    fails too.
    """

    kind: Literal["docker", "local"] | None
    """None as long as it was not opened; see `LazySandbox`."""
    home: str
    """The job's HOME, outside of its workspace; one path for commands and for file operations."""
    kept_folder: str
    """A folder of the job that its next attempt on this host has too, with the files of the
    workspace. It is outside of the workspace, so nothing in it is a change; it counts against the
    job's disk. Empty until the sandbox is open."""
    files_id: str
    """Identifies the files of the workspace: equal to the last attempt's only if this attempt
    started with those files."""

    async def run(self, command: Command, on_output: OutputSink | None = None) -> Execution:
        """Run a command to its end.

        When the time limit is reached or the caller is cancelled, all its processes are killed.

        Args:
            command: what to run.
            on_output: receives the output while the command runs. An exception that it raises ends
                the command and is raised here.

        Raises:
            SandboxFailure: the sandbox failed.
        """

    async def execute(
        self,
        command: str,
        timeout_seconds: float,
        max_output_bytes: int,
        on_output: OutputSink | None = None,
    ) -> Execution:
        """See `Shell.execute`."""
        shell_command = Command(
            argv=command,
            timeout_seconds=timeout_seconds,
            max_output_bytes=max_output_bytes,
            keep_output=True,
        )
        return await self.run(shell_command, on_output)

    def open_process(self, command: Command) -> AbstractAsyncContextManager[Process]:
        """Run a command while the context is open, then kill all its processes.

        It has the limits, user and environment of every command, but no time limit. Its output is
        received by the caller, so `max_output_bytes` bounds only its error output; `stdin` is not
        used, since the caller sends the input.

        Raises:
            SandboxFailure: the sandbox failed.
        """

    async def read_bytes(
        self, path: str, max_bytes: int | None = None, *, offset: int = 0
    ) -> bytes:
        """See `Backend.read_bytes`.

        Args:
            path: a file.
            max_bytes: None reads to the end.
            offset: the position of the first byte.
        """

    async def write_bytes(
        self, path: str, data: bytes, *, create_only: bool = False, mode: int | None = None
    ) -> None:
        """See `Backend.write_bytes`.

        Args:
            path: a file.
            data: its whole new content.
            create_only: raise FileExistsError when anything is at the path.
            mode: the permission bits; None keeps those of an existing file.
        """

    async def lstat(self, path: str) -> Entry:
        """Return the entry at a path; a link is not followed.

        Raises:
            FileNotFoundError: nothing is there.
            SandboxFailure: the sandbox failed.
        """

    async def changes(self) -> IO[bytes]:
        """Collect the change bundle of the workspace against what it started from.

        Returns:
            An open temporary file, positioned at its start; the caller closes it. Its size is
            bounded by the job's disk limit. `orchestrator.jobs.changes` reads it.

        Raises:
            SandboxFailure: the sandbox failed.
        """

    async def changed_files(self) -> Mapping[str, str]:
        """Return what the bundle of `changes` lists, by absolute path, each with its change.

        It costs as much as the bundle: a summary of a conversation asks, which takes longer itself.

        Raises:
            SandboxFailure: the sandbox failed.
            MalformedBundle: the sandbox sent a bundle that cannot be read.
        """
        with await self.changes() as bundle:
            listed = await asyncio.to_thread(_listed, bundle)
        return {posixpath.join(self.search_root, path): change for path, change in listed}


def _listed(bundle: IO[bytes]) -> Sequence[tuple[str, str]]:
    with ChangeBundle.open(bundle) as opened:
        return [(file.path, str(file.change)) for file in opened.changes.files]


IsLive = Callable[[str], Awaitable[bool]]
"""Answers a question about a job, given its id."""


async def nobody(_job_id: str) -> bool:
    """Answer no, whichever job it is."""
    return False


class SandboxProvider(Protocol):
    """Opens sandboxes; each worker process has one."""

    @property
    def environments(self) -> Environments | None:
        """The prepared environments; None where there can be none."""

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        """Open a sandbox for one attempt, its workspace filled from the snapshot and the layers.

        When the context ends, the sandbox and all its processes are removed. Where the provider
        can, it keeps the job's files for the next attempt, until `discard`.

        Raises:
            SandboxFailure: the sandbox could not be started.
        """

    def expect(self, spec: SandboxSpec) -> AbstractContextManager[None]:
        """Return a context: while it is open, a sandbox like this one will probably be wanted.

        A provider may start one ahead. There is no I/O here, and nothing is raised.
        """

    def expect_next(self, specs: Sequence[SandboxSpec]) -> None:
        """Note which sandboxes the jobs that are queued will want, in place of those before.

        A provider may start some ahead. There is no I/O here, and nothing is raised.
        """

    async def pulse(self) -> None:
        """Check that what opens sandboxes answers; cheap enough for every few seconds.

        Raises:
            SandboxFailure: no sandbox can be opened.
        """

    async def rehearse(self, spec: SandboxSpec) -> None:
        """Open a sandbox that no job has, and remove it.

        Raises:
            SandboxFailure: what a job's opening would raise.
        """

    def was_lost(self, job_id: str) -> bool:
        """Return whether a job's open sandbox has ended together with what the host runs it by."""

    async def collect_changes(self, job_id: str) -> IO[bytes]:
        """Collect the change bundle of a job that has ended, as `Sandbox.changes` does.

        Its processes are killed before, if any are left, and its files stay.

        Raises:
            FilesMissing: nothing is left of the job here.
            SandboxFailure: the engine or the collection failed.
        """

    async def home(self, job_id: str) -> str:
        """Return the `home` of a job's sandbox, before it is opened.

        Raises:
            SandboxFailure: this machine cannot have sandboxes.
        """

    async def discard(self, job_id: str) -> None:
        """Delete what is left of a job that has ended: containers, volumes, files.

        Raises:
            SandboxFailure: the engine does not answer.
        """

    async def reap(self, is_live: IsLive, keeps_files: IsLive = nobody) -> int:
        """Remove what is left of jobs for which `is_live(job_id)` is false.

        Args:
            is_live: whether the job's processes may run.
            keeps_files: whether the files of a job that is not live are needed all the same.

        Returns:
            The number of things removed.

        Raises:
            SandboxFailure: the engine does not answer.
        """

    async def close(self) -> None:
        """Release the provider's own resources."""


SnapshotSource = Callable[[str], Awaitable[Path]]
"""Fetches a snapshot's archive, or a layer's change bundle, by its blob id into a local file, which
may be a cache and must not be changed."""
