"""Starts and stops a private Redis and a worker of this machine, without any set-up."""

from __future__ import annotations

import asyncio
import fcntl
import time
from collections.abc import Callable
from typing import IO, Self

from ..client.attachment import state_folder
from ..client.job_reader import JobReader
from ..client.state_folder import (
    EmbeddedRecord,
    NotStarted,
    StateFolder,
    acquire,
    name_pool,
    try_lock,
)
from ..configuration.settings import PREFIX, Settings
from ..jobs.store.connection import answers
from ..jobs.worker_info import WorkerInfo
from .child_process import ChildProcess
from .liveness import living_workers, was_killed, worker_process
from .notifier import STOP_SECONDS, notifier_process, start_notifier
from .python_process import (
    child_environment,
    fingerprint,
    keeper_environment,
    python_argv,
)
from .redis_server import RedisServer
from .sandbox_check import require_same_sandbox, require_sandbox
from .server import Server

WORKER_START_SECONDS = 60.0
"""The time for a worker's start: importing the agent libraries takes several seconds on a busy
machine."""

LOOK_SECONDS = 0.02
"""The time between two checks whether the worker is ready: one command of Redis each."""


class Embedded:
    """The Redis and the worker of a state folder, as an async context manager.

    Attaches to those that run already; otherwise it starts them, and stops them at the end, even
    when this process is killed. If no worker with these settings and keys runs, it starts one: jobs
    of other commands continue with theirs, and `keeper` ends unused workers.

    Args:
        settings: The settings of this process.
        keep: Leave them running until `stop_embedded`.
        idle_seconds: If they are left running: the time without use after which they end; None:
            they do not. Services that run already keep their time, unless it is None here.
        revive: Start them only if they were killed, not if another command has started or stopped
            them meanwhile. Among the workers, that of the settings' pool or the last used one
            counts.
        serve: Also begin to start the service; see `Server`.
        notice: Called with a text when services are started, and when the end has to wait for
            other commands.

    Raises:
        LedgerUnavailable: On entry: Redis did not start, or stopped.
        NotStarted: On entry: the folder cannot be used, or the worker did not start.
        NoSandbox: On entry: a worker is needed, and commands could not be isolated.
        OtherSandbox: On entry: a worker runs already, with another sandbox.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        keep: bool = False,
        idle_seconds: float | None = None,
        revive: bool = False,
        serve: bool = False,
        notice: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._folder = state_folder(settings)
        self._serve = serve
        self._keep = keep
        self._idle_seconds = idle_seconds
        self._environment = ""
        self._revive = revive
        self._notice = notice
        self._users: IO[bytes] | None = None
        self._pool_users: IO[bytes] | None = None
        self._owns_redis = False
        self._owns_worker = False
        self._kept = keep
        self._redis = _redis_server(self._folder, settings)
        self._worker = worker_process(self._folder, "")
        self._keeper = ChildProcess(self._folder.path, "keeper")
        self.settings = settings.model_copy(
            update={"blobs_url": settings.blobs, "state_dir": self._folder.path}
        )
        """The settings of a client; inside the context, with the URL of Redis and the pool."""

    async def __aenter__(self) -> Self:
        self._folder.prepare()
        try:
            with self._folder.disk_errors():
                self._users = await self._folder.open_users()
                async with self._folder.locked():
                    await self._attach_or_start()
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._leave()

    async def replace_worker(self) -> None:
        """Kill the worker as a crash would, and start another one.

        Raises:
            NotStarted: The other one did not start.
        """
        async with self._folder.locked():
            await self._worker.kill()
            self._start_worker()
            self._write_record()
            await self._worker_registered()

    async def _attach_or_start(self) -> None:
        pool = self.settings.worker.pool
        if self._revive and not await asyncio.to_thread(was_killed, self._folder, pool):
            return
        record = self._folder.read_record()
        await self._check_sandbox(record)
        await self._start_missing(record)
        await self._worker_registered()
        needs_keeper = self._idle_seconds is not None or len(living_workers(self._folder)) > 1
        if self._kept and needs_keeper and not self._keeper.is_alive:
            self._keeper.start(
                python_argv("fanout.orchestrator.embedded.keeper"),
                env=keeper_environment(self.settings),
                outlives_parent=True,
            )
        if self._kept and self.settings.notifications.on_finish:
            await start_notifier(self.settings)

    async def _start_missing(self, record: EmbeddedRecord | None) -> None:
        """Attach to running services, and start the others; returns before the worker is ready."""
        alive = record is not None and self._redis.process.is_alive
        if record is not None and alive and await asyncio.to_thread(answers, record.redis_url):
            if self._keep and not record.kept:
                raise NotStarted(
                    f"Another command started the Redis of {self._folder.path} and stops it when "
                    "it ends: try again then."
                )
            self._kept = record.kept
            if self._revive or self._idle_seconds is not None:
                self._idle_seconds = record.idle_seconds
            found = {"redis_url": record.redis_url, "blobs_url": record.blobs_url}
        else:
            if not self._revive:
                self._notice("Starting a Redis and a worker …")
            await _stop_workers(self._folder, self.settings)
            await self._redis.stop()
            self._owns_redis = True
            found = {"redis_url": await self._redis.start(outlives_parent=self._kept)}
        self.settings = self.settings.model_copy(update=found)
        await self._choose_pool(record)
        if not self._worker.is_alive:
            if living_workers(self._folder):
                self._notice("Settings changed: starting a worker with them …")
            self._owns_worker = True
            self._start_worker()
        self._write_record()
        if self._serve:
            await Server(self._folder).launch(self.settings)

    async def _choose_pool(self, record: EmbeddedRecord | None) -> None:
        """Find the worker of these settings and keys, and keep it while this context is open."""
        environment = self._worker_environment()
        self._environment = fingerprint(
            self.settings, environment, record.environment if record else None
        )
        pool = name_pool(self._environment)
        worker = self.settings.worker.model_copy(update={"pool": pool})
        self.settings = self.settings.model_copy(update={"worker": worker})
        self._pool_users = await self._folder.open_users(pool)
        self._worker = worker_process(self._folder, pool)

    async def _check_sandbox(self, record: EmbeddedRecord | None) -> None:
        """Check the sandbox before a start; a restart after a crash uses the former one."""
        if record is not None and self._revive:
            sandbox = self.settings.sandbox.model_copy(update={"provider": record.sandbox})
            self.settings = self.settings.model_copy(update={"sandbox": sandbox})
        if record is None or not living_workers(self._folder):
            await require_sandbox(self.settings)
        else:
            require_same_sandbox(self.settings, record.sandbox, self._folder.path)

    def _start_worker(self) -> None:
        argv = python_argv("fanout.workers", "--restart")
        env = self._worker_environment()
        try:
            self._worker.start(argv, env=env, outlives_parent=self._kept)
        except OSError as error:
            raise NotStarted(f"The worker cannot be started: {error}.") from error

    def _worker_environment(self) -> dict[str, str]:
        ours = {"MODEL": self.settings.model, "WORKER__POOL": self.settings.worker.pool}
        return child_environment(self.settings) | {
            f"{PREFIX}{name}": value for name, value in ours.items()
        }

    async def _worker_registered(self) -> None:
        deadline = time.monotonic() + WORKER_START_SECONDS
        async with JobReader.from_settings(self.settings) as reader:
            while not any(self._worker.is_of(_pid(worker)) for worker in await reader.workers()):
                if not self._worker.is_alive or time.monotonic() > deadline:
                    why = self._worker.last_log_line() or "it wrote nothing"
                    raise NotStarted(f"The worker did not start ({self._worker.log_path}): {why}")
                await asyncio.sleep(LOOK_SECONDS)

    def _write_record(self) -> None:
        self._folder.write_record(
            EmbeddedRecord(
                redis_url=str(self.settings.redis_url),
                blobs_url=self.settings.blobs,
                redis_pid=self._redis.process.pid,
                worker_pid=self._worker.pid,
                kept=self._kept,
                sandbox=self.settings.sandbox.provider,
                idle_seconds=self._idle_seconds if self._kept else None,
                environment=self._environment,
            )
        )

    async def _leave(self) -> None:
        """Stop the services that this context started, when no other command uses them."""
        try:
            if self._owns_redis and not self._kept:
                await self._wait_for_other_users()
            if self._owns_worker and not self._kept:
                await self._worker.stop(self.settings.worker.shutdown_grace_seconds)
            if self._owns_redis and not self._kept:
                await self._redis.stop()
                self._folder.remove_record()
        finally:
            for users in filter(None, (self._pool_users, self._users)):
                users.close()

    async def _wait_for_other_users(self) -> None:
        """Wait until no other command uses the folder; new ones wait for the end of the stop."""
        if self._users is not None and not try_lock(self._users, fcntl.LOCK_EX):
            self._notice("Another command still uses this Redis and worker: waiting for it to end.")
            await acquire(self._users, fcntl.LOCK_EX)


async def stop_embedded(settings: Settings) -> bool:
    """Stop the Redis and the workers of the state folder that outlived their command.

    Returns:
        False when none was running.

    Raises:
        NotStarted: Another command keeps starting or stopping them, or as `stop_in`.
    """
    folder = state_folder(settings)
    if not folder.path.is_dir():
        return False
    async with folder.locked():
        return await stop_in(folder, settings)


async def stop_in(folder: StateFolder, settings: Settings) -> bool:
    """Stop the Redis and the workers of a state folder whose lock the caller holds.

    Args:
        folder: The state folder.
        settings: The settings of this process.

    Returns:
        False when none was running.

    Raises:
        NotStarted: A process has not ended, not even when it was killed.
    """
    redis, server = _redis_server(folder, settings), Server(folder)
    workers, notifier = living_workers(folder), notifier_process(folder)
    ran = bool(workers) or redis.process.is_alive
    await server.stop(settings)
    await _stop_workers(folder, settings)
    await notifier.stop(STOP_SECONDS)
    await redis.stop()
    processes = (*workers.values(), redis.process, server.process, notifier)
    if left := [f"{one.name} (process {one.pid})" for one in processes if one.is_alive]:
        raise NotStarted(
            f"Not stopped: {', '.join(left)}. It was killed and has not ended: it hangs in the "
            "kernel, for example at a file of an unreachable host. Repeat `fanout down` later."
        )
    folder.remove_record()
    return ran


async def _stop_workers(folder: StateFolder, settings: Settings) -> None:
    grace = settings.worker.shutdown_grace_seconds
    await asyncio.gather(*(worker.stop(grace) for worker in living_workers(folder).values()))


def _pid(worker: WorkerInfo) -> int:
    """Return the id of a worker's process, with which its name ends; 0 without one."""
    ending = worker.name.rpartition("-")[2]
    return int(ending) if ending.isdecimal() else 0


def _redis_server(folder: StateFolder, settings: Settings) -> RedisServer:
    return RedisServer(folder.path / "redis", settings.redis_memory_bytes)
