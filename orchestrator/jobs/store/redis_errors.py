"""Redis's exceptions, translated in one place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import RedisError

from orchestrator.jobs.failures import LedgerUnavailable

DISK_FULL = "MISCONF"
"""What Redis begins with when it refuses a change because it could not write the last one."""


@contextmanager
def redis_failures() -> Iterator[None]:
    """Turn whatever the client raises into `LedgerUnavailable`, in words and without the address."""
    try:
        yield
    except (RedisError, OSError) as error:
        if DISK_FULL in str(error):
            raise LedgerUnavailable("Redis cannot write to its disk: make room there.") from error
        raise LedgerUnavailable(
            f"Redis does not answer ({type(error).__name__}): check that it runs and FANOUT_REDIS_URL.",
        ) from error
