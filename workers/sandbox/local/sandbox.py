"""A job's folder as a sandbox: a jailed directory backend, and commands as processes."""

from __future__ import annotations

import asyncio
import itertools
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import IO, Concatenate, Literal, ParamSpec, TypeVar

from fanout.orchestrator.deep_agent import DirectoryBackend, Execution, OutputSink
from fanout.orchestrator.jobs.failures import SandboxFailure
from fanout.orchestrator.portable.command_output import OutputFiles

from ..errors import DiskLimitExceeded, SandboxDied
from ..inside.change_bundle import write_bundle
from ..inside.change_diffs import PrivateGitFailed
from ..inside.change_scan import scan_trees
from ..inside.disks import walked_bytes
from ..protocol import WORKSPACE, Command, Process, Sandbox
from . import processes as local_processes
from .processes import LocalJobFolder

P = ParamSpec("P")
T = TypeVar("T")

DISK_CHECK_SECONDS = 2.0
"""Between two measurements of a job's disk usage: each one walks its files."""


class LocalSandbox(DirectoryBackend, Sandbox):
    """A job's folder and the commands that run in it."""

    kind: Literal["docker", "local"] = "local"

    def __init__(
        self, folder: LocalJobFolder, before: Path, max_disk_bytes: int | None, files_id: str
    ) -> None:
        """Make a sandbox on a prepared folder.

        Args:
            folder: where the job's commands run.
            before: its snapshot, unpacked.
            max_disk_bytes: how much the job may add to that.
            files_id: see `Sandbox.files_id`.
        """
        tmp = {"/tmp": folder.tmp, folder.seen_tmp: folder.tmp}  # noqa: S108 - the job's own
        super().__init__(folder.tree, mount=WORKSPACE, also=tmp)
        self.home, self.files_id = folder.home, files_id
        self.kept_folder = folder.seen_tmp
        self._folder, self._base_content, self._max_disk_bytes = folder, before, max_disk_bytes
        self._failure: SandboxFailure | None = None
        """The failure that ended the sandbox; every later call raises it."""
        self._output_files = OutputFiles(
            f"{folder.seen_tmp}/command_output", self._create, self._delete
        )
        self._numbers = itertools.count(1)
        self._has_run = False
        """Whether there may be processes: to find them, those of the whole machine are read."""
        self._running: set[asyncio.Task[Execution]] = set()
        self._stopped: list[local_processes.StoppedRun] = []
        """Commands that were stopped while others ran: what escaped them is killed after these."""
        self._watching: asyncio.Task[None] | None = None
        self._start_bytes: int | None = None
        self._measured_at = time.monotonic()

    async def _in_thread(
        self, path: str, work: Callable[Concatenate[str, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        self._raise_failure()
        return await super()._in_thread(path, work, *args, **kwargs)

    def _raise_failure(self) -> None:
        """Raise the failure that ended the sandbox, if there is one."""
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)

    async def run(self, command: Command, on_output: OutputSink | None = None) -> Execution:
        """See `Sandbox.run`. A lack of memory is not distinguished from other failures.

        Raises:
            SandboxDied: the sandbox is closed.
            DiskLimitExceeded: the job wrote more than its limit.
        """
        return await self._run_here(command, on_output)

    @asynccontextmanager
    async def open_process(self, command: Command) -> AsyncIterator[Process]:
        """See `Sandbox.open_process`.

        Raises:
            SandboxDied: the sandbox is closed.
            DiskLimitExceeded: the job wrote more than its limit.
        """
        ours, theirs = socket.socketpair()
        channel = local_processes.SocketChannel(*await asyncio.open_connection(sock=ours))
        process = Process(channel, command.max_output_bytes)
        process.begin(self._run_here(command, process.add_errors, theirs))
        try:
            yield process
        finally:
            try:
                await process.stop()
            finally:
                channel.close()
                theirs.close()  # already closed, unless the process was never started

    async def _run_here(
        self, command: Command, on_output: OutputSink | None, link: socket.socket | None = None
    ) -> Execution:
        """Run a command and watch its limits; `link` makes it a live process."""
        self._raise_failure()
        self._has_run = True
        marker = f"{self._folder.token}-{next(self._numbers)}"
        started_ticks = local_processes.ticks_since_boot()
        cwd = command.cwd
        if not self._folder.bound:
            cwd = await asyncio.to_thread(self._real_folder, cwd)
        work = local_processes.run(
            self._folder,
            command,
            cwd,
            marker=marker,
            on_output=on_output,
            output_files=self._output_files,
            link=link,
        )
        running = asyncio.create_task(work)
        self._running.add(running)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch_disk())
        try:
            await asyncio.wait({running})
        finally:
            if not running.done():
                running.cancel()
                await asyncio.wait({running})
            self._running.discard(running)
            stopped = running.cancelled() or running.exception() or running.result().timed_out
            if stopped and link is None:  # a live process is always stopped: daemons stay
                self._stopped.append(local_processes.StoppedRun(marker, started_ticks))
            await self._sweep()
            self._stop_watching()
        if time.monotonic() > self._measured_at + DISK_CHECK_SECONDS / 2:
            await self._check_disk()
        self._raise_failure()
        return running.result()

    async def changes(self) -> IO[bytes]:
        """See `Sandbox.changes`.

        Raises:
            SandboxDied: the sandbox is closed.
            SandboxFailure: git is missing or failed.
        """
        if isinstance(self._failure, SandboxDied):
            self._raise_failure()
        return await asyncio.to_thread(make_bundle, self._base_content, self._folder.tree)

    async def close(self) -> bool:
        """Kill every process; the files are kept. Returns whether none is left."""
        self._failure = SandboxDied("the sandbox is closed")
        for running in self._running:
            running.cancel()
        self._stop_watching()
        if not self._has_run:
            return True
        return await local_processes.kill_job(self._folder.token, self._folder.tree)

    def _real_folder(self, path: str) -> str:
        """Return the folder in which a command starts; for a forbidden one a missing one."""
        try:
            with self._directory(path) as opened:
                return str(Path(f"/proc/self/fd/{opened}").readlink())
        except OSError:
            return "/nonexistent"

    async def _sweep(self) -> None:
        """Kill daemons that escaped a stopped command's session and marker, if no other runs."""
        if self._stopped and not self._running:
            stopped, self._stopped = self._stopped, []
            await local_processes.kill_stopped(self._folder.token, self._folder.tree, stopped)

    def _stop_watching(self) -> None:
        if not self._running and self._watching is not None:
            self._watching.cancel()
            self._watching = None

    async def _watch_disk(self) -> None:
        pause = DISK_CHECK_SECONDS
        while True:
            await asyncio.sleep(pause)
            took_seconds = await self._check_disk()
            pause = max(DISK_CHECK_SECONDS, 10 * took_seconds)

    async def _check_disk(self) -> float:
        """Stop everything when the job has written too much; return how long measuring took."""
        started = time.monotonic()
        if self._max_disk_bytes is not None and self._failure is None:
            grown = await asyncio.to_thread(self._grown_bytes)
            if grown > self._max_disk_bytes:
                limit = f"disk_bytes = {self._max_disk_bytes}"
                message = f"the job wrote {grown} bytes; its limit is {limit}"
                self._failure = DiskLimitExceeded(message)
                for running in self._running:
                    running.cancel()
        self._measured_at = time.monotonic()
        return self._measured_at - started

    def _grown_bytes(self) -> int:
        if self._start_bytes is None:
            self._start_bytes = walked_bytes(self._base_content)
        return walked_bytes(self._folder.tree) + walked_bytes(self._folder.tmp) - self._start_bytes


def make_bundle(before: Path, after: Path) -> IO[bytes]:
    """Return the change bundle between two folders, as an open temporary file; it blocks.

    Args:
        before: What a job started from.
        after: Its workspace.

    Raises:
        SandboxFailure: Git is missing or failed.
    """
    with ExitStack() as stack:
        out = stack.enter_context(tempfile.TemporaryFile())
        try:
            write_bundle(out, before, after, scan_trees(before, after))
        except PrivateGitFailed as error:
            raise SandboxFailure(f"the changes could not be listed: {error}") from error
        out.seek(0)
        stack.pop_all()  # the caller closes it
        return out
