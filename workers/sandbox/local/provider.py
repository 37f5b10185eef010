"""Sandboxes without Docker: a folder and process groups of this machine.

This is no isolation. Commands run as the worker's user and see this machine; only their own good
behaviour keeps them in their folder. Linux only. Enforced limits: time, output, size of a file,
data memory of a process, disk (measured). Not enforced: cpus, pids, network; commands have this
machine's network, whatever hosts a job names.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import IO

from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.private_files import make_private_folder

from ..errors import FilesMissing, SandboxStartFailed, SnapshotUnusable
from ..inside import archives, snapshots
from ..layers import Element, element_archive, read_chain
from ..protocol import (
    WORKSPACE,
    IsLive,
    Sandbox,
    SandboxSpec,
    SnapshotSource,
    nobody,
)
from . import processes as local_processes
from .processes import (
    LocalJobFolder,
    check_privileges,
    enter_own_mounts,
    home_below,
    seen_tmp,
)
from .sandbox import LocalSandbox, make_bundle

UNUSED_SNAPSHOT_SECONDS = 3600.0
"""How long an unpacked snapshot that no job uses is kept."""

_UNLIMITED_BYTES = 1 << 50
"""Replaces a missing limit where a number is required: a petabyte."""
_TRIED_BYTES = 64 * 1024
"""The bytes written to test whether the disk accepts any: more than a file system stores with a
name."""
_LABEL = "label.json"
_FILES = "files"
_TMP = "tmp"
_JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class _Label:
    """The name of the file with the owner of a job's files, in the same folder."""

    installation: str
    job: str
    attempt: int
    token: str
    pid: int
    started: str
    """The start time of that process: its id may be reused."""

    def worker_is_alive(self) -> bool:
        return _start_time(self.pid) == self.started


@cache
def _own_start(pid: int) -> str:
    """Return this process's own start time, which every label names; a fork has another id."""
    return _start_time(pid)


def _start_time(pid: int) -> str:
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

    environments = None

    def __init__(self, snapshots: SnapshotSource, root: Path, installation: str) -> None:
        """Make a provider.

        Args:
            snapshots: fetches a snapshot's archive.
            root: the folder of all sandboxes.
            installation: the id that the ledger keeps; nothing of another one is reaped.
        """
        self._snapshots, self._root = snapshots, root.resolve()
        self._installation = installation
        self._bound: bool | None = None
        self._unpacking: dict[str, asyncio.Lock] = {}
        self._without_processes: set[str] = set()
        """The tokens of closed sandboxes whose folders are kept and of which no process is left."""

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """See `SandboxProvider.open`.

        Raises:
            SnapshotUnusable: the snapshot's archive or a layer is damaged or leaves its root.
            NotUnderstood: a newer release wrote a layer.
            SandboxStartFailed: the job's folder could not be created, or its commands would be able
                to read this worker's memory.
            InvalidJob: the job has credentials, which only a proxy could keep outside.
            ValueError: the job's id cannot be the name of a folder.
        """
        if spec.credentials:
            raise InvalidJob(
                "Credentials need Docker sandboxes: only their proxy puts them in "
                "(FANOUT_SANDBOX__PROVIDER=docker)."
            )
        await self._examine_machine()
        start = [
            self._root / "snapshots" / each.id for each in read_chain(spec.snapshot, spec.layers)
        ]
        job_folder = self._job_folder(spec.job_id)
        is_unpacked, earlier = await asyncio.to_thread(self._look, start, job_folder)
        before = start[-1] if is_unpacked else await self._unpacked(spec.snapshot, spec.layers)
        try:
            if earlier is not None:
                await local_processes.kill_job(earlier.token, job_folder / "tree")
            folder, files_id = await asyncio.to_thread(self._prepare, spec, before)
        except (OSError, subprocess.CalledProcessError) as error:
            raise _not_created(error) from error
        sandbox = LocalSandbox(folder, before, spec.limits.disk_bytes, files_id)
        try:
            yield sandbox
        finally:
            await asyncio.shield(self._close(sandbox, folder.token))

    def expect(self, spec: SandboxSpec) -> AbstractContextManager[None]:
        """See `SandboxProvider.expect`: a folder needs no start ahead."""
        del spec
        return nullcontext()

    def expect_next(self, specs: Sequence[SandboxSpec]) -> None:
        """See `SandboxProvider.expect_next`: nothing is started ahead."""

    async def home(self, job_id: str) -> str:
        """See `SandboxProvider.home`.

        Raises:
            SandboxStartFailed: its folder could not be created, or its commands would be able to
                read this worker's memory.
            ValueError: the job's id cannot be the name of a folder.
        """
        await self._examine_machine()
        return home_below(seen_tmp(self._job_folder(job_id) / _TMP, bound=bool(self._bound)))

    async def _close(self, sandbox: LocalSandbox, token: str) -> None:
        if await sandbox.close():
            self._without_processes.add(token)

    async def pulse(self) -> None:
        """See `SandboxProvider.pulse`: a folder on a full or read-only disk cannot be made.

        Raises:
            SandboxStartFailed: the job's folder could not be created.
        """
        await self._examine_machine()
        try:
            await asyncio.to_thread(self._try_to_write)
        except OSError as error:
            raise _not_created(error) from error

    def _try_to_write(self) -> None:
        """Write what every sandbox needs: a folder, and a file in it."""
        folder = self._root / f"pulse-{os.getpid()}"
        try:
            make_private_folder(folder)
            (folder / _LABEL).write_bytes(bytes(_TRIED_BYTES))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def rehearse(self, spec: SandboxSpec) -> None:
        """See `SandboxProvider.rehearse`: a sandbox is a folder.

        Raises:
            SandboxStartFailed: see `pulse`.
        """
        del spec
        await self.pulse()

    def was_lost(self, job_id: str) -> bool:
        """See `SandboxProvider.was_lost`: its processes are children of this one."""
        del job_id
        return False

    async def discard(self, job_id: str) -> None:
        """See `SandboxProvider.discard`.

        Raises:
            ValueError: the job's id cannot be the name of a folder.
        """
        await self._remove_job(self._job_folder(job_id))

    async def collect_changes(self, job_id: str) -> IO[bytes]:
        """See `SandboxProvider.collect_changes`.

        Raises:
            FilesMissing: nothing is left of the job here.
            SandboxFailure: git is missing or failed.
            ValueError: the job's id cannot be the name of a folder.
        """
        folder = self._job_folder(job_id)
        await _kill_leftovers(folder)
        return await asyncio.to_thread(self._collect_changes, folder)

    async def reap(self, is_live: IsLive, keeps_files: IsLive = nobody) -> int:
        """See `SandboxProvider.reap`. Also kills processes that dead workers left running."""
        removed = 0
        for folder, label, is_orphan in await asyncio.to_thread(self._labelled):
            if not (await is_live(label.job) or await keeps_files(label.job)):
                await self._remove_job(folder)
                removed += 1
            elif is_orphan:
                # Not by the folder: the next attempt may have begun in it.
                await local_processes.kill_job(label.token, None)
        return removed + await asyncio.to_thread(self._remove_unused_snapshots)

    def _labelled(self) -> list[tuple[Path, _Label, bool]]:
        """Return the folders of this installation's jobs, and whether the worker of each is dead.

        All of them in one step of a thread: there may be hundreds.
        """
        labels = [
            (folder, _read_label(folder)) for folder in _list_job_folders(self._root / "jobs")
        ]
        return [
            (folder, label, not label.worker_is_alive())
            for folder, label in labels
            if label is not None and label.installation == self._installation
        ]

    async def close(self) -> None:
        """See `SandboxProvider.close`."""

    async def _examine_machine(self) -> None:
        """Close the folders to others, and find out how commands are kept in theirs; once."""
        if self._bound is None:
            try:
                await asyncio.to_thread(self._make_folders)
            except OSError as error:
                raise _not_created(error) from error
            await asyncio.to_thread(check_privileges)
            self._bound = await asyncio.to_thread(_mounts_work)

    def _make_folders(self) -> None:
        for name in ("jobs", "snapshots"):
            make_private_folder(self._root / name)

    def _job_folder(self, job_id: str) -> Path:
        if not _JOB_ID.fullmatch(job_id):
            raise ValueError("not a job id")
        return self._root / "jobs" / job_id

    def _look(self, start: Sequence[Path], job_folder: Path) -> tuple[bool, _Label | None]:
        """Return whether what a job starts from is unpacked, and the label of an earlier attempt.

        All of it in one step, because a job waits for it, and each change of threads costs as much
        as a look at a folder.
        """
        is_unpacked = False
        for folder in start:
            with contextlib.suppress(FileNotFoundError):
                os.utime(folder)  # the time of its last use
                is_unpacked = folder == start[-1]
        return is_unpacked, _read_label(job_folder)

    async def _unpacked(self, snapshot: str | None, layers: Sequence[str]) -> Path:
        """Return the folder of what a job starts from; its jobs share it and only read it.

        It is made once, and so are those of the snapshot and of each layer on the way to it.
        """
        snapshots, folder = self._root / "snapshots", None
        await asyncio.to_thread(make_private_folder, snapshots)
        for element in read_chain(snapshot, layers):
            below, folder = folder, snapshots / element.id
            async with self._unpacking.setdefault(element.id, asyncio.Lock()):
                if not await asyncio.to_thread(folder.exists):
                    async with element_archive(element, self._snapshots) as archive:
                        await asyncio.to_thread(unpack_element, element, archive, folder, below)
            await asyncio.to_thread(os.utime, folder)  # the time of its last use
        assert folder is not None  # noqa: S101 - a chain has an element
        return folder

    def _prepare(self, spec: SandboxSpec, before: Path) -> tuple[LocalJobFolder, str]:
        """Create a job's folder, or keep an earlier attempt's; return it and its files' id.

        With few calls of the system: after each of them it waits for the thread of the agents.
        """
        folder = self._job_folder(spec.job_id)
        tree, tmp = folder / "tree", folder / _TMP
        try:
            folder.mkdir(exist_ok=True)
        except FileNotFoundError:
            make_private_folder(folder.parent)
            folder.mkdir(exist_ok=True)
        tmp.mkdir(exist_ok=True)
        (tmp / "home").mkdir(exist_ok=True)
        pid = os.getpid()
        token = secrets.token_hex(8)
        label = _Label(self._installation, spec.job_id, spec.attempt, token, pid, _own_start(pid))
        _write(folder / _LABEL, json.dumps(asdict(label)))
        _write(folder / "snapshot", before.name)
        if tree.exists():
            files_id = _content(folder / _FILES)
        else:
            _write(folder / _FILES, files_id := secrets.token_hex(8))
            copy_tree(before, tree)
        disk = spec.limits.disk_bytes or _UNLIMITED_BYTES
        memory = spec.limits.memory_bytes or _UNLIMITED_BYTES
        return LocalJobFolder(token, tree, tmp, memory, disk, bool(self._bound)), files_id

    def _collect_changes(self, folder: Path) -> IO[bytes]:
        tree, before = folder / "tree", _content(folder / "snapshot")
        if not before or not tree.exists():
            raise FilesMissing("The files of the job are not on this host any more.")
        return make_bundle(self._root / "snapshots" / before, tree)

    async def _remove_job(self, folder: Path) -> None:
        label = await asyncio.to_thread(_read_label, folder)
        if label is not None and label.token not in self._without_processes:
            await local_processes.kill_job(label.token, folder / "tree")
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        if label is not None:
            self._without_processes.discard(label.token)

    def _remove_unused_snapshots(self) -> int:
        used = {_content(folder / "snapshot") for folder in _list_job_folders(self._root / "jobs")}
        removed = 0
        for folder in _list_job_folders(self._root / "snapshots"):
            idle_seconds = time.time() - folder.lstat().st_mtime
            if folder.name not in used and idle_seconds > UNUSED_SNAPSHOT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
                removed += 1
        return removed


def _not_created(error: Exception) -> SandboxStartFailed:
    reason = error.strerror if isinstance(error, OSError) else "the files could not be copied"
    return SandboxStartFailed(
        f"The job's folder could not be created: {reason}. See the disk of FANOUT_STATE_DIR."
    )


def _write(path: Path, text: str) -> None:
    with path.open("wb", buffering=0) as file:  # text and a buffer take three calls more
        file.write(text.encode())


def _content(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _list_job_folders(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.exists() else []


async def _kill_leftovers(folder: Path) -> None:
    """Kill what an attempt in a job's folder has left running."""
    label = await asyncio.to_thread(_read_label, folder)
    if label is not None:
        await local_processes.kill_job(label.token, folder / "tree")


def _mounts_work() -> bool:
    """Return whether commands can have a mount namespace in which `/workspace` is their folder."""
    if os.geteuid() != 0:
        return False
    try:
        Path(WORKSPACE).mkdir(exist_ok=True)
        with ThreadPoolExecutor(1) as thread:
            thread.submit(enter_own_mounts, {WORKSPACE: Path("/var")}).result()
    except OSError:
        return False
    return True


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder with its modes, times and links; shares blocks where the file system can.

    Raises:
        CalledProcessError: it could not be copied.
    """
    part = target.with_name(target.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    if not any(source.iterdir()):  # a job without files is no reason to start a program
        part.mkdir()
        shutil.copystat(source, part)
        part.rename(target)
        return
    command = ["cp", "-a", "--reflink=auto", "--", str(source), str(part)]
    subprocess.run(  # noqa: S603 - our paths
        command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    part.rename(target)


def unpack_element(element: Element, archive: Path, target: Path, below: Path | None) -> None:
    """Unpack a snapshot or a layer into a folder with the whole tree, which appears when complete.

    An existing folder is kept.

    Args:
        element: what it is.
        archive: its archive.
        target: the folder.
        below: the folder of what a layer is put on, whose files are shared; None for a snapshot.

    Raises:
        SnapshotUnusable: see `archives.unpack` and `snapshots.merge_into`.
        OSError: the file system refused.
        CalledProcessError: what is below could not be copied.
    """
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{target.name[:16]}-", dir=target.parent))
    try:
        tree, written = part / "tree", part / "written"
        written.mkdir()
        written.chmod(0o755)
        removed: list[str] = []
        archives.unpack(archive, written, _keep_owner, None if below is None else removed)
        if below is None:
            tree = written
        else:
            snapshots.copy_linked(below, tree)
            snapshots.merge_into(tree, written, removed, _keep_owner)
        tree.rename(target)
    except archives.UnusableArchive as error:
        raise SnapshotUnusable(f"The {element} cannot be used: {error}.") from error
    except OSError:
        if not target.exists():  # unless another thread was faster
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _keep_owner(_path: str | Path) -> None:
    """Leave a file to this process's user."""
