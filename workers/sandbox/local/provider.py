"""Sandboxes without Docker: a folder and process groups of this machine.

This is no isolation. Commands run as the worker's user and see this machine; nothing but care keeps
them in their folder. Linux only. Limits that hold: time, output, size of a file, data memory of a
process, disk (measured). Those that do not: cpus, pids, network; commands have this machine's,
whatever hosts a job names.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Concatenate, Literal, ParamSpec, TypeVar

from orchestrator.deep_agent import DirectoryBackend, Execution, OutputSink
from orchestrator.jobs.failures import SandboxFailure
from workers.sandbox.errors import DiskLimitExceeded, SandboxDied, SandboxStartFailed
from workers.sandbox.inside.change_patch import GitFailed
from workers.sandbox.inside.change_scan import scan_trees, write_bundle
from workers.sandbox.local import processes as local_processes
from workers.sandbox.local.files import copy_tree, disk_bytes, unpack_snapshot
from workers.sandbox.local.processes import JobFolder
from workers.sandbox.process import Process
from workers.sandbox.protocol import (
    WORKSPACE,
    Command,
    Sandbox,
    SandboxSpec,
    SnapshotSource,
)

P = ParamSpec("P")
T = TypeVar("T")

DISK_CHECK_SECONDS = 2.0
"""Between two looks at what a job has written: each one walks its files."""
UNUSED_SNAPSHOT_SECONDS = 3600.0
"""How long an unpacked snapshot that no job uses is kept."""

_UNLIMITED_BYTES = 1 << 50
"""Stands for no limit where a number is wanted: a petabyte."""
_EMPTY = "empty"
_LABEL = "label.json"
_FILES = "files"
_JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class _Label:
    """What is written beside a job's files, for whoever finds them."""

    owner: str
    job: str
    attempt: int
    token: str
    pid: int
    started: str
    """When that process started: its id may be another one's by now."""

    def worker_is_alive(self) -> bool:
        return _start_of(self.pid) == self.started


def _start_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _read_label(folder: Path) -> _Label | None:
    try:
        return _Label(**json.loads((folder / _LABEL).read_text()))
    except (OSError, ValueError, TypeError):
        return None


class LocalProvider:
    """Opens sandboxes in folders below `root`."""

    def __init__(self, snapshots: SnapshotSource, root: Path, owner: str) -> None:
        """`owner` marks what belongs to this installation; only that is reaped."""
        self._snapshots, self._root, self._owner = snapshots, root.resolve(), owner
        self._bound: bool | None = None
        self._unpacking: dict[str, asyncio.Lock] = {}

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """See `SandboxProvider.open`."""
        if self._bound is None:
            self._bound = await asyncio.to_thread(_mounts_work)
        before = await self._unpacked(spec.snapshot)
        try:
            folder, files_id = await asyncio.to_thread(self._prepare, spec, before)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SandboxStartFailed(
                f"the job's folder could not be made: {type(error).__name__}"
            ) from error
        sandbox = LocalSandbox(folder, before, spec.limits.disk_bytes, files_id)
        try:
            yield sandbox
        finally:
            await asyncio.shield(sandbox.close())

    async def discard(self, job_id: str) -> None:
        """See `SandboxProvider.discard`."""
        await asyncio.to_thread(_remove_job, self._job_folder(job_id))

    async def reap(self, is_live: Callable[[str], Awaitable[bool]]) -> int:
        """See `SandboxProvider.reap`. Also kills what dead workers left running."""
        removed = 0
        for folder in await asyncio.to_thread(_folders_in, self._root / "jobs"):
            label = await asyncio.to_thread(_read_label, folder)
            if label is None or label.owner != self._owner:
                continue
            if not await is_live(label.job):
                await asyncio.to_thread(_remove_job, folder)
                removed += 1
            elif not await asyncio.to_thread(label.worker_is_alive):
                # Not by the folder: the next attempt may just have begun in it.
                await asyncio.to_thread(local_processes.kill_job, label.token, None)
        return removed + await asyncio.to_thread(self._remove_unused_snapshots)

    async def close(self) -> None:
        """See `SandboxProvider.close`."""

    def _job_folder(self, job_id: str) -> Path:
        if not _JOB_ID.fullmatch(job_id):
            raise ValueError("not a job id")
        return self._root / "jobs" / job_id

    async def _unpacked(self, snapshot: str | None) -> Path:
        """The folder of a snapshot, unpacked once and shared by its jobs, which only read it."""
        folder = self._root / "snapshots" / (snapshot or _EMPTY)
        if snapshot is None:
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        else:
            async with self._unpacking.setdefault(snapshot, asyncio.Lock()):
                if not await asyncio.to_thread(folder.exists):
                    await asyncio.to_thread(
                        unpack_snapshot, await self._snapshots(snapshot), folder
                    )
        await asyncio.to_thread(os.utime, folder)  # it is in use again
        return folder

    def _prepare(self, spec: SandboxSpec, before: Path) -> tuple[JobFolder, str]:
        """A job's folder, and the id of its files.

        Those of an earlier attempt stay, its processes do not.
        """
        folder = self._job_folder(spec.job_id)
        tree, tmp = folder / "tree", folder / "tmp"
        earlier = _read_label(folder)
        if earlier is not None:
            local_processes.kill_job(earlier.token, tree)
        (tmp / "home").mkdir(parents=True, exist_ok=True)
        pid = os.getpid()
        token = secrets.token_hex(8)
        label = _Label(self._owner, spec.job_id, spec.attempt, token, pid, _start_of(pid))
        (folder / _LABEL).write_text(json.dumps(asdict(label)))
        (folder / "snapshot").write_text(before.name)
        if not tree.exists():
            (folder / _FILES).write_text(secrets.token_hex(8))
            copy_tree(before, tree)
        disk = spec.limits.disk_bytes or _UNLIMITED_BYTES
        memory = spec.limits.memory_bytes or _UNLIMITED_BYTES
        return JobFolder(token, tree, tmp, memory, disk, bound=bool(self._bound)), _content(
            folder / _FILES
        )

    def _remove_unused_snapshots(self) -> int:
        used = {_content(folder / "snapshot") for folder in _folders_in(self._root / "jobs")}
        removed = 0
        for folder in _folders_in(self._root / "snapshots"):
            idle_seconds = time.time() - folder.lstat().st_mtime
            if folder.name not in used and idle_seconds > UNUSED_SNAPSHOT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
                removed += 1
        return removed


def _content(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _folders_in(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.exists() else []


def _remove_job(folder: Path) -> None:
    label = _read_label(folder)
    if label is not None:
        local_processes.kill_job(label.token, folder / "tree")
    shutil.rmtree(folder, ignore_errors=True)


def _mounts_work() -> bool:
    """Whether commands can be given a mount namespace in which `/workspace` is the job's folder."""
    if os.geteuid() != 0:
        return False
    try:
        Path(WORKSPACE).mkdir(exist_ok=True)
        probe = ["unshare", "-m", "--", "mount", "--bind", "/var", WORKSPACE]
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0  # noqa: S603 - our own
    except OSError:
        return False


class LocalSandbox(DirectoryBackend, Sandbox):
    """One job's folder and the commands that run in it."""

    kind: Literal["docker", "local"] = "local"
    max_searched_bytes = None

    def __init__(
        self, folder: JobFolder, before: Path, max_disk_bytes: int | None, files_id: str
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
        self._folder, self._before, self._max_disk_bytes = folder, before, max_disk_bytes
        self._failure: SandboxFailure | None = None
        """What ended the sandbox; every later call raises it."""
        self._numbers = itertools.count(1)
        self._running: set[asyncio.Task[Execution]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._start_bytes: int | None = None
        self._measured_at = time.monotonic()

    async def _in_thread(
        self, path: str, work: Callable[Concatenate[str, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        self._raise_failure()
        return await super()._in_thread(path, work, *args, **kwargs)

    def _raise_failure(self) -> None:
        """Raise what ended the sandbox, if something did."""
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)

    async def run(self, command: Command, on_output: OutputSink | None = None) -> Execution:
        """See `Sandbox.run`. Memory that runs out is not told apart from other failures."""
        return await self._run_here(command, on_output)

    @asynccontextmanager
    async def open_process(self, command: Command) -> AsyncIterator[Process]:
        """See `Sandbox.open_process`."""
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
                theirs.close()  # it has been passed on, unless the process was never started

    async def _run_here(
        self, command: Command, on_output: OutputSink | None, link: socket.socket | None = None
    ) -> Execution:
        """Run a command, the limits in view; `link` makes it a live process."""
        self._raise_failure()
        marker = f"{self._folder.token}-{next(self._numbers)}"
        cwd = command.cwd
        if not self._folder.bound:
            cwd = await asyncio.to_thread(self._real_folder, cwd)
        work = local_processes.run(
            self._folder, command, cwd, marker=marker, on_output=on_output, link=link
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
            if (
                stopped and link is None
            ):  # a live process is always stopped: daemons of commands stay
                await self._sweep()
            self._stop_watching()
        if time.monotonic() > self._measured_at + DISK_CHECK_SECONDS / 2:
            await self._check_disk()
        self._raise_failure()
        return running.result()

    async def changes(self) -> IO[bytes]:
        """See `Sandbox.changes`."""
        if isinstance(self._failure, SandboxDied):
            self._raise_failure()
        return await asyncio.to_thread(self._write_changes)

    async def close(self) -> None:
        """Kill every process; the files stay."""
        self._failure = SandboxDied("the sandbox is closed")
        for running in self._running:
            running.cancel()
        self._stop_watching()
        await asyncio.to_thread(local_processes.kill_job, self._folder.token, self._folder.tree)

    def _write_changes(self) -> IO[bytes]:
        out = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
        try:
            write_bundle(
                out, self._before, self._folder.tree, scan_trees(self._before, self._folder.tree)
            )
        except GitFailed as error:
            out.close()
            raise SandboxFailure(f"the changes could not be listed: {error}") from error
        except BaseException:
            out.close()
            raise
        out.seek(0)
        return out

    def _real_folder(self, path: str) -> str:
        """Where a command is to start; a folder that it may not have is one that is not there."""
        try:
            with self._directory(path) as descriptor:
                return str(Path(f"/proc/self/fd/{descriptor}").readlink())
        except OSError:
            return "/nonexistent"

    async def _sweep(self) -> None:
        """After a command was stopped: daemons that hid from its session and its marker go, too."""
        if not self._running:
            await asyncio.to_thread(local_processes.kill_job, self._folder.token, self._folder.tree)

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
        """Stop everything when the job has written too much; how long measuring took."""
        started = time.monotonic()
        if self._max_disk_bytes is not None and self._failure is None:
            grown = await asyncio.to_thread(self._grown_bytes)
            if grown > self._max_disk_bytes:
                limit = f"disk_bytes = {self._max_disk_bytes}"
                self._failure = DiskLimitExceeded(
                    f"the job wrote {grown} bytes; its limit is {limit}"
                )
                for running in self._running:
                    running.cancel()
        self._measured_at = time.monotonic()
        return self._measured_at - started

    def _grown_bytes(self) -> int:
        if self._start_bytes is None:
            self._start_bytes = disk_bytes(self._before)
        return disk_bytes(self._folder.tree) + disk_bytes(self._folder.tmp) - self._start_bytes
