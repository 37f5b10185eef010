"""Which Redis and blobs a program uses: the configured ones, or those of this machine."""

from __future__ import annotations

import fcntl
from typing import IO

from ..configuration.settings import Settings
from ..jobs.failures import LedgerUnavailable
from ..jobs.store.connection import answers
from ..private_files import open_private_file
from .state_folder import StateFolder, try_lock

NO_REDIS = "No Redis: set FANOUT_REDIS_URL, or start one here with `fanout up`."


def state_folder(settings: Settings) -> StateFolder:
    """Return the folder of the Redis and the worker of this machine."""
    return StateFolder(settings.state_dir.expanduser().resolve())


def attached(settings: Settings) -> Settings:
    """Return the settings with the URL of the state folder's Redis, unless one is configured.

    Raises:
        LedgerUnavailable: No Redis is configured or running.
    """
    if settings.redis_url is not None:
        return settings
    record = state_folder(settings).read_record()
    if record is None or not answers(record.redis_url):
        raise LedgerUnavailable(NO_REDIS)
    return settings.model_copy(
        update={"redis_url": record.redis_url, "blobs_url": record.blobs_url}
    )


def is_of_state_folder(settings: Settings) -> bool:
    """Return whether the Redis of settings is the private one of their state folder."""
    record = state_folder(settings).read_record()
    return record is not None and settings.redis_url in (None, record.redis_url)


def attach(settings: Settings) -> tuple[Settings, IO[bytes] | None]:
    """Return the settings as `attached`, and a file that keeps the services of the state folder.

    Until the file is closed, they do not end because of idleness. None when a Redis is configured,
    which this machine does not manage.

    Raises:
        LedgerUnavailable: No Redis is configured or running, or the local one is ending.
    """
    found = attached(settings)
    if settings.redis_url is not None:
        return found, None
    users = open_private_file(state_folder(settings).users)
    if try_lock(users, fcntl.LOCK_SH):
        return found, users
    users.close()
    raise LedgerUnavailable(NO_REDIS)
