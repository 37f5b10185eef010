"""A job's deadline: made once per attempt from what is left of its time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from orchestrator.jobs.failures import JobFailure, out_of_time


@contextlib.contextmanager
def deadline(
    timeout_seconds: float, ran_seconds: float, stop: Callable[[JobFailure], None]
) -> Iterator[None]:
    """Call `stop` when a job's time is over, unless the body has ended by then.

    Args:
        timeout_seconds: the job's limit, over all its attempts.
        ran_seconds: what earlier attempts ran.
        stop: ends the attempt, for the reason given.
    """
    late = out_of_time(timeout_seconds)
    remaining = max(timeout_seconds - ran_seconds, 0)
    alarm = asyncio.get_running_loop().call_later(remaining, stop, late)
    try:
        yield
    finally:
        alarm.cancel()
