"""The state folder of an embedded installation: its record and its locks.

- `redis/`: the append-only file, the socket and the log of Redis
- `worker-<pool>.log`: the output of a worker. A pool is one set of settings and keys. Each pool has
  its own worker, so that jobs run with the settings of the command that submitted them.
- `worker-<pool>.users`: locked by every command that submits jobs to it
- `embedded.json`: how to reach both; readable only by its owner, because it may contain a password
- `embedded.lock`: held while a command starts or stops them
- `embedded.users`: locked by every command that uses them
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import IO, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from ..jobs.failures import LedgerUnavailable
from ..private_files import (
    create_private_file,
    make_private_folder,
    open_private_file,
)

LOCK_WAIT_SECONDS = 90.0
"""The time limit for the lock, longer than a start takes: a second command waits for the first
one's."""


class NotStarted(LedgerUnavailable):
    """Redis or the worker of this machine could not be started or stopped; the text says why."""


POOL_CHARACTERS = 12
"""The length of a pool's name: it distinguishes the few sets of settings that one person has at
once."""


class EmbeddedRecord(BaseModel):
    """The content of `embedded.json`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    redis_url: str
    blobs_url: str
    redis_pid: int | None
    worker_pid: int | None
    kept: bool
    """Whether they outlive the command that started them."""
    sandbox: Literal["docker", "local"] = "docker"
    """The sandbox in which the worker runs commands."""
    idle_seconds: float | None = None
    """The time without use after which they end; None: they run until `fanout down`."""
    environment: str = ""
    """The settings and keys of the last used worker (`python_process.fingerprint`)."""

    @property
    def pool(self) -> str:
        """The pool of the last used worker; empty in a release without pools."""
        return name_pool(self.environment)


def name_pool(fingerprint: str) -> str:
    """Return the name of the pool of workers with these settings and keys.

    Args:
        fingerprint: Their fingerprint (`python_process.fingerprint`).
    """
    return fingerprint.partition("-")[2][:POOL_CHARACTERS]


class StateFolder:
    """The record and the locks of a state folder.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.users = path / "embedded.users"
        self._record = path / "embedded.json"

    def prepare(self) -> None:
        """Create the folder.

        Raises:
            NotStarted: It cannot be created or written to.
        """
        try:
            if not self.path.exists():  # a folder that a person created keeps its modes
                make_private_folder(self.path)
            make_private_folder(self.path / "redis")
            for path in (self.path, self.path / "redis"):
                if not os.access(path, os.W_OK | os.X_OK):
                    raise PermissionError(13, "it is not writable")
        except OSError as error:
            raise NotStarted(
                f"The state folder {self.path} cannot be used ({error.strerror}): "
                "set FANOUT_STATE_DIR to another one."
            ) from error

    @property
    def has_record(self) -> bool:
        """Whether `embedded.json` exists, readable or not."""
        return self._record.exists()

    def read_record(self) -> EmbeddedRecord | None:
        """Return the content of `embedded.json`; None when it is missing or invalid."""
        try:
            return EmbeddedRecord.model_validate_json(self._record.read_bytes())
        except (OSError, ValidationError):
            return None

    def write_record(self, record: EmbeddedRecord) -> None:
        """Replace `embedded.json`.

        Raises:
            OSError: It cannot be written.
        """
        draft = self.path / "embedded.json.new"
        write_private(draft, record.model_dump_json(indent=2) + "\n")
        draft.replace(self._record)

    def remove_record(self) -> None:
        """Remove `embedded.json`, if it exists."""
        self._record.unlink(missing_ok=True)

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Hold the lock of the command that starts or stops services in the folder.

        Raises:
            NotStarted: Another command holds the lock for longer than `LOCK_WAIT_SECONDS`.
        """
        deadline = time.monotonic() + LOCK_WAIT_SECONDS
        with open_private_file(self.path / "embedded.lock") as lock:
            while not try_lock(lock, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    raise NotStarted(
                        f"Another command is starting or stopping fanout in {self.path}: try again."
                    )
                await asyncio.sleep(0.1)
            yield

    def pool_users(self, pool: str) -> Path:
        """Return the file that the users of a pool's worker lock."""
        return self.path / f"worker-{pool}.users"

    async def open_users(self, pool: str | None = None) -> IO[bytes]:
        """Register this command as a user of the folder, until the returned file is closed.

        Args:
            pool: The pool whose worker it uses; None: it uses all services of the folder.
        """
        users = open_private_file(self.users if pool is None else self.pool_users(pool))
        try:
            await acquire(users, fcntl.LOCK_SH)
        except BaseException:
            users.close()
            raise
        return users

    @contextmanager
    def disk_errors(self) -> Iterator[None]:
        """Translate errors of writing to the folder.

        Raises:
            NotStarted: The folder cannot be written to.
        """
        try:
            yield
        except OSError as error:
            raise NotStarted(
                f"The state folder {self.path} cannot be written to ({error.strerror}): make room "
                "there, or set FANOUT_STATE_DIR to another one."
            ) from error


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read.

    Raises:
        OSError: It cannot be written.
    """
    path.unlink(missing_ok=True)
    with create_private_file(path) as file:
        file.write(text.encode())


async def acquire(file: IO[bytes], kind: int) -> None:
    """Wait until an open file is locked.

    Args:
        file: The file.
        kind: `fcntl.LOCK_SH` or `fcntl.LOCK_EX`.
    """
    while not try_lock(file, kind):  # noqa: ASYNC110 - another process holds the lock
        await asyncio.sleep(0.1)


def try_lock(file: IO[bytes], kind: int) -> bool:
    """Lock an open file, as `acquire`; return False when another process holds its lock."""
    with suppress(BlockingIOError):
        fcntl.flock(file, kind | fcntl.LOCK_NB)
        return True
    return False
