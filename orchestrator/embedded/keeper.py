"""The keeper: ends the Redis and the workers of a state folder when they are no longer used.

It is a separate process, which outlives the command that started it. They are used while a job is
alive, and while a command holds the lock of users. A worker with other settings than the last used
ones ends as soon as no command uses it and it has no job to run.
"""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from ..client import JobReader
from ..client.state_folder import (
    EmbeddedRecord,
    NotStarted,
    StateFolder,
    try_lock,
)
from ..configuration.settings import Settings, load_settings
from ..jobs.failures import JobFailure
from ..jobs.state import LIVE_STATES
from ..private_files import open_private_file
from .child_process import ChildProcess
from .liveness import living_workers
from .services import stop_in

CHECK_SECONDS = 5.0
"""The time between two checks: they cost three commands of Redis, and are frequent compared to the
minutes of idleness."""
GRACE_SECONDS = 3.0
"""The time for a worker to remove its containers after its folder was deleted."""


async def keep(settings: Settings) -> None:
    """Return when the services have ended, by this process or another, or are kept permanently.

    Args:
        settings: The settings with which they run; their state folder has the record.
    """
    folder = StateFolder(settings.state_dir)
    services = _Services()
    with suppress(FileNotFoundError):  # the folder was deleted
        await _until_idle(folder, settings, services)
    if not folder.has_record:
        await services.end()


async def _until_idle(folder: StateFolder, settings: Settings, services: _Services) -> None:
    idle_since = time.monotonic()
    while (record := folder.read_record()) is not None and (
        record.idle_seconds is not None or _earlier_workers(folder)
    ):
        services.note(folder, record)
        await asyncio.sleep(min(CHECK_SECONDS, (record.idle_seconds or math.inf) / 2))
        await _end_earlier_workers(folder, settings)
        if record.idle_seconds is None or await _is_used(folder, record, settings):
            idle_since = time.monotonic()
        elif time.monotonic() - idle_since >= record.idle_seconds:
            async with folder.locked():
                # A command that had the lock may use them now, or keep them permanently.
                record = folder.read_record()
                if (
                    record is not None
                    and record.idle_seconds is not None
                    and not await _is_used(folder, record, settings)
                ):
                    with suppress(NotStarted):  # a process that hangs may end later
                        await stop_in(folder, settings)
                        return


class _Services:
    """The processes of a folder, which nothing else knows after the folder was deleted."""

    def __init__(self) -> None:
        self._started: dict[int, str] = {}

    def note(self, folder: StateFolder, record: EmbeddedRecord) -> None:
        """Record the processes and their start times."""
        workers = [worker.pid for worker in living_workers(folder).values()]
        for pid in filter(None, (*workers, record.worker_pid, record.redis_pid)):
            if pid not in self._started:
                self._started[pid] = _start_time(pid)

    async def end(self) -> None:
        """End those that still run; another process may have the id by now."""
        self._send(signal.SIGTERM)
        await asyncio.sleep(GRACE_SECONDS)
        self._send(signal.SIGKILL)  # Redis does not end while it cannot write its folder

    def _send(self, number: signal.Signals) -> None:
        for pid, started in self._started.items():
            if started and _start_time(pid) == started:
                with suppress(ProcessLookupError):
                    os.killpg(pid, number)


def _start_time(pid: int) -> str:
    """Return the time of a process's start, as Linux counts it; empty for an ended one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _earlier_workers(folder: StateFolder) -> dict[str, ChildProcess]:
    """Return the workers with other settings than the last used ones, by pool."""
    record, workers = folder.read_record(), living_workers(folder)
    return {pool: workers[pool] for pool in workers if record is not None and pool != record.pool}


async def _end_earlier_workers(folder: StateFolder, settings: Settings) -> None:
    for pool, worker in _earlier_workers(folder).items():
        if await _is_needed(folder, pool, settings):
            continue
        async with folder.locked():
            if pool in _earlier_workers(folder) and not await _is_needed(folder, pool, settings):
                await worker.stop(GRACE_SECONDS)
                worker.forget()
                folder.pool_users(pool).unlink(missing_ok=True)


async def _is_needed(folder: StateFolder, pool: str, settings: Settings) -> bool:
    """Return whether a command uses a pool's worker, or a job remains that it can run."""
    with open_private_file(folder.pool_users(pool)) as users:
        if not try_lock(users, fcntl.LOCK_EX):
            return True
    record = folder.read_record()
    if record is None:
        return True
    try:
        async with _reader(record, settings) as reader:
            return await reader.is_pool_needed(pool)
    except JobFailure:
        return True


def _reader(record: EmbeddedRecord, settings: Settings) -> JobReader:
    urls = {"redis_url": record.redis_url, "blobs_url": record.blobs_url}
    return JobReader.from_settings(settings.model_copy(update=urls))


async def _is_used(folder: StateFolder, record: EmbeddedRecord, settings: Settings) -> bool:
    with open_private_file(folder.path / "embedded.users") as users:
        if not try_lock(users, fcntl.LOCK_EX):
            return True
    try:
        async with _reader(record, settings) as reader:
            return bool(await reader.list(states=LIVE_STATES, limit=1))
    except JobFailure:  # Redis was killed: the jobs continue when a command starts it again
        return bool(living_workers(folder))


def main() -> None:
    """Keep the services of this process's settings until they end."""
    asyncio.run(keep(load_settings()))


if __name__ == "__main__":
    main()
