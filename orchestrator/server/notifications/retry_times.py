"""When a notification that was not delivered is tried again."""

from __future__ import annotations

import random

MAX_TRIES = 11
"""Over a day: a receiver that is down for a night, or is repaired the next morning, loses none."""
FIRST_PAUSE_SECONDS = 5.0
"""A receiver that is restarted answers again after it."""
LONGEST_PAUSE_SECONDS = 6 * 3600.0
"""So that a receiver that is down for a day is tried a few times in the second half of it."""
GROWTH = 4.0
JITTER = 0.2
"""The part of a pause by which it is shorter or longer, so that what failed together is not tried
together."""
LONGEST_WISH_SECONDS = 24 * 3600.0
"""Of a receiver's `Retry-After`: what asks for more gets this."""


def next_try(tries: int, wish: float | None = None) -> float | None:
    """Return the seconds until the next try, None when there is none.

    Args:
        tries: How often it was tried.
        wish: The seconds for which the receiver wants to be left alone.
    """
    if tries >= MAX_TRIES:
        return None
    pause = min(FIRST_PAUSE_SECONDS * GROWTH ** (tries - 1), LONGEST_PAUSE_SECONDS)
    pause *= random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - no secret
    return max(pause, min(wish or 0.0, LONGEST_WISH_SECONDS))
