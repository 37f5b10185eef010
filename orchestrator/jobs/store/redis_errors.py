"""The translation of Redis's exceptions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import RedisError

from orchestrator.jobs.failures import LedgerUnavailable

DISK_FULL = "MISCONF"
"""How Redis's error begins when it rejects a write because it could not store the last one."""


@contextmanager
def redis_failures() -> Iterator[None]:
    """Translate the client's exceptions; the text has no address, which may contain a password.

    Raises:
        LedgerUnavailable: Redis does not respond, or cannot write to its disk.
    """
    try:
        yield
    except (RedisError, OSError) as error:
        if DISK_FULL in str(error):
            raise LedgerUnavailable("Redis cannot write to its disk: make room there.") from error
        raise LedgerUnavailable(
            f"Redis does not answer ({type(error).__name__}): check that it runs, and "
            "FANOUT_REDIS_URL.",
        ) from error
