"""Token buckets by name: so many per minute, and as many at once."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

MAX_BUCKETS = 10_000
"""Remembered by one process, in some 2 MB; beyond, the one that was used longest ago is full."""
_MINUTE = 60.0


@dataclass
class _Bucket:
    """What is left, as of a time."""

    left: float
    at: float


class Buckets:
    """The buckets of one process; each is full at first.

    Args:
        per_minute: What flows into each, and its size.
        clock: Seconds.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def wait(self, name: str) -> float:
        """Return the seconds until one may be taken; 0: now."""
        bucket = self._buckets.get(name)
        missing = 1 - self._refilled(bucket) if bucket is not None else 0.0
        return max(0.0, missing) * _MINUTE / self._per_minute

    def take(self, name: str) -> None:
        """Take one."""
        bucket = self._buckets.pop(name, None) or _Bucket(self._per_minute, self._clock())
        bucket.left = self._refilled(bucket) - 1
        self._buckets[name] = bucket
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)

    def _refilled(self, bucket: _Bucket) -> float:
        now = self._clock()
        earned = (now - bucket.at) * self._per_minute / _MINUTE
        bucket.left, bucket.at = min(bucket.left + earned, self._per_minute), now
        return bucket.left
