"""Redis's exceptions, translated in one place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import RedisError

from orchestrator.jobs.failures import LedgerUnavailable


@contextmanager
def redis_failures() -> Iterator[None]:
    """Turn whatever the client raises into `LedgerUnavailable`, in words and without the address."""
    try:
        yield
    except (RedisError, OSError) as error:
        raise LedgerUnavailable(
            f"Redis does not answer ({type(error).__name__}): check that it runs and FANOUT_REDIS_URL.",
        ) from error
