"""One machine and no set-up.

A private Redis and a worker as child processes, kept in a state folder.

The folder:

- `redis/`: the append-only file, the socket and the log of Redis
- `worker.log`: what the worker writes
- `embedded.json`: how to reach them; only for its owner, because it may hold a password
- `embedded.lock`: held while they are started or stopped
- `embedded.users`: locked by every command that works with them
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.client import JobClient
from orchestrator.configuration.settings import PREFIX, SandboxSettings, Settings
from orchestrator.embedded.child_process import ChildProcess
from orchestrator.embedded.redis_server import RedisServer, answers
from orchestrator.jobs.failures import LedgerUnavailable

REPOSITORY = Path(__file__).resolve().parents[2]
"""The folder that holds our packages: it goes first on a child's path, before a stranger's
`config`."""

WORKER_START_SECONDS = 60.0
"""Importing the agent libraries takes several seconds on a busy machine."""

LOCK_WAIT_SECONDS = 90.0
"""Longer than a start takes: a second command waits for the first one's."""

NO_REDIS = "No Redis: set FANOUT_REDIS_URL, or start one here with `fanout up`."


class NotStarted(LedgerUnavailable):
    """Redis or the worker of this machine could not be started or stopped; the text says why."""


class EmbeddedRecord(BaseModel):
    """What `embedded.json` holds."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    redis_url: str
    blobs_url: str
    redis_pid: int | None
    worker_pid: int | None
    kept: bool
    """Whether they outlive the command that started them."""


class Embedded:
    """The Redis and the worker of a state folder, as an async context manager.

    Attaches to those that already run there; otherwise it starts them and stops them at the end,
    also when this process is killed. With `keep` they stay until `stop_embedded`. With `revive`
    they are started only where they were killed; what another command has started or stopped by
    then is left as it is.

    Raises on entry:
        NotStarted: the folder cannot be used, or one of the two did not start.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        keep: bool = False,
        revive: bool = False,
        notice: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._folder = settings.state_dir.expanduser().resolve()
        self._keep = keep
        self._revive = revive
        self._notice = notice
        self._users: IO[bytes] | None = None
        self._owns_redis = False
        self._owns_worker = False
        self._kept = keep
        self._redis = RedisServer(self._folder / "redis")
        self._worker = _worker_process(self._folder)
        self.settings = settings.model_copy(
            update={"blobs_url": settings.blobs, "state_dir": self._folder}
        )
        """The settings that reach them, for a client; complete inside the context."""

    async def __aenter__(self) -> Self:
        _prepare(self._folder)
        try:
            with _words_of_the_disk(self._folder):
                await self._enter()
        except BaseException:
            await self._leave()
            raise
        return self

    async def _enter(self) -> None:
        self._users = (self._folder / "embedded.users").open("ab")
        await _take(self._users, fcntl.LOCK_SH)
        async with _locked(self._folder):
            await self._attach_or_start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._leave()

    async def _attach_or_start(self) -> None:
        if self._revive and not await asyncio.to_thread(was_killed, self._folder):
            return
        record = read_record(self._folder)
        alive = record is not None and self._redis.process.is_alive
        if record is not None and alive and await asyncio.to_thread(answers, record.redis_url):
            if self._keep and not record.kept:
                raise NotStarted(
                    f"Another command started the Redis of {self._folder} and stops it when it ends; "
                    "try again then."
                )
            self._kept = record.kept
            found = {"redis_url": record.redis_url, "blobs_url": record.blobs_url}
        else:
            await self._worker.stop(self.settings.worker.shutdown_grace_seconds)
            await self._redis.stop()
            self._owns_redis = True
            found = {"redis_url": await self._redis.start(outlives_parent=self._kept)}
        self.settings = self.settings.model_copy(update=found)
        if not self._worker.is_alive:
            self._owns_worker = True
            self._start_worker(outlives_parent=self._kept)
        self._write_record()
        await self._worker_registered()

    def _start_worker(self, *, outlives_parent: bool) -> None:
        argv = [sys.executable, "-m", "workers"]
        env = child_environment(self.settings) | self._worker_settings()
        try:
            self._worker.start(argv, env=env, outlives_parent=outlives_parent)
        except OSError as error:
            raise NotStarted(f"The worker cannot be started: {error}.") from error

    def _worker_settings(self) -> dict[str, str]:
        """A private ledger needs a private owner.

        A reaper removes what its own ledger does not know.
        """
        sandbox = self.settings.sandbox
        owner = sandbox.owner
        if owner == SandboxSettings().owner:
            owner += "-" + hashlib.sha256(os.fsencode(self._folder)).hexdigest()[:10]
        return {
            f"{PREFIX}SANDBOX__PROVIDER": sandbox.provider or "auto",
            f"{PREFIX}SANDBOX__OWNER": owner,
            f"{PREFIX}MODEL": self.settings.model,
        }

    async def _worker_registered(self) -> None:
        deadline = time.monotonic() + WORKER_START_SECONDS
        async with JobClient.from_settings(self.settings) as client:
            while not any(
                worker.name.endswith(f"-{self._worker.pid}") for worker in await client.workers()
            ):
                if not self._worker.is_alive or time.monotonic() > deadline:
                    why = self._worker.last_log_line() or "it said nothing"
                    raise NotStarted(f"The worker did not start ({self._worker.log_path}): {why}")
                await asyncio.sleep(0.1)

    def _write_record(self) -> None:
        record = EmbeddedRecord(
            redis_url=str(self.settings.redis_url),
            blobs_url=self.settings.blobs,
            redis_pid=self._redis.process.pid,
            worker_pid=self._worker.pid,
            kept=self._kept,
        )
        draft = self._folder / "embedded.json.new"
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(record.model_dump_json(indent=2) + "\n")
        draft.replace(self._folder / "embedded.json")

    async def _leave(self) -> None:
        """Stop what this context started, once nobody else works with it."""
        try:
            if self._owns_redis and not self._kept:
                await self._last_user()
            if self._owns_worker and not self._kept:
                await self._worker.stop(self.settings.worker.shutdown_grace_seconds)
            if self._owns_redis and not self._kept:
                await self._redis.stop()
                (self._folder / "embedded.json").unlink(missing_ok=True)
        finally:
            if self._users is not None:
                self._users.close()

    async def _last_user(self) -> None:
        """Wait until no other command works here; later ones wait until everything is stopped."""
        if self._users is not None and not _taken(self._users, fcntl.LOCK_EX):
            self._notice("Another command still uses this Redis and worker: waiting for it to end.")
            await _take(self._users, fcntl.LOCK_EX)


def read_record(folder: Path) -> EmbeddedRecord | None:
    """What `embedded.json` says; None when there is none or it is not understood."""
    try:
        return EmbeddedRecord.model_validate_json((folder / "embedded.json").read_bytes())
    except (OSError, ValidationError):
        return None


def was_killed(folder: Path) -> bool:
    """Whether what ran in a state folder is gone without having been stopped.

    What was in it must go on.
    """
    if not ((folder / "embedded.json").exists() and (folder / "redis" / "appendonlydir").is_dir()):
        return False
    record = read_record(folder)
    if record is None or not answers(record.redis_url):
        return True
    return record.kept and not _worker_process(folder).is_alive


async def reachable(settings: Settings, notice: Callable[[str], None]) -> Settings:
    """As `attached`; what was killed in the state folder is started again first, and stays.

    Raises:
        LedgerUnavailable: there is no Redis, or it cannot be started again.
    """
    folder = settings.state_dir.expanduser().resolve()
    if settings.redis_url is None and await asyncio.to_thread(was_killed, folder):
        notice(f"What ran in {folder} was killed; it is started again. Stop it: fanout down")
        async with Embedded(settings, keep=True, revive=True, notice=notice):
            pass
    return await asyncio.to_thread(attached, settings)


def attached(settings: Settings) -> Settings:
    """The settings with the Redis of the state folder, when none is configured and that one answers.

    Raises:
        LedgerUnavailable: there is none.
    """
    if settings.redis_url is not None:
        return settings
    record = read_record(settings.state_dir.expanduser())
    if record is None or not answers(record.redis_url):
        raise LedgerUnavailable(NO_REDIS)
    return settings.model_copy(
        update={"redis_url": record.redis_url, "blobs_url": record.blobs_url}
    )


async def stop_embedded(settings: Settings) -> bool:
    """Stop what `keep` left running in the state folder; False when nothing ran there.

    Raises:
        NotStarted: the folder cannot be used, or another command starts or stops right now.
    """
    folder = settings.state_dir.expanduser().resolve()
    if not folder.is_dir():
        return False
    async with _locked(folder):
        worker, redis = _worker_process(folder), RedisServer(folder / "redis")
        ran = worker.is_alive or redis.process.is_alive
        await worker.stop(settings.worker.shutdown_grace_seconds)
        await redis.stop()
        (folder / "embedded.json").unlink(missing_ok=True)
    return ran


def child_environment(settings: Settings) -> dict[str, str]:
    """The environment of a child process of ours.

    Where it finds our packages, Redis and the blobs.
    """
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    ours = {
        "PYTHONPATH": path,
        f"{PREFIX}REDIS_URL": settings.redis_url or "",
        f"{PREFIX}BLOBS_URL": settings.blobs,
        f"{PREFIX}STATE_DIR": str(settings.state_dir),
    }
    if settings.agents_dir is not None:
        ours[f"{PREFIX}AGENTS_DIR"] = str(settings.agents_dir.resolve())
    return {**os.environ, **ours}


def _worker_process(folder: Path) -> ChildProcess:
    return ChildProcess(folder, "worker")


def _prepare(folder: Path) -> None:
    try:
        for path in (folder, folder / "redis"):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(13, "it is not writable")
    except OSError as error:
        raise NotStarted(
            f"The state folder {folder} cannot be used ({error.strerror}): "
            "set FANOUT_STATE_DIR to another one."
        ) from error


@contextmanager
def _words_of_the_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotStarted(
            f"The state folder {folder} cannot be written to ({error.strerror}): make room there, or set "
            "FANOUT_STATE_DIR to another one."
        ) from error


@asynccontextmanager
async def _locked(folder: Path) -> AsyncIterator[None]:
    """Only one command at a time starts or stops what a folder holds."""
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    with (folder / "embedded.lock").open("ab") as lock:
        while not _taken(lock, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise NotStarted(f"Another command starts or stops fanout in {folder}; try again.")
            await asyncio.sleep(0.1)
        yield


async def _take(file: IO[bytes], kind: int) -> None:
    while not _taken(file, kind):  # noqa: ASYNC110 - another process holds the lock
        await asyncio.sleep(0.1)


def _taken(file: IO[bytes], kind: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(file, kind | fcntl.LOCK_NB)
        return True
    return False
