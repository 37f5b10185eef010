"""The rate limiter: requests and tokens per minute of each model, over all processes.

A request waits for its turn before it is sent. It counts for a minute from then on, first with the
tokens that it may use, later with those that it used. A crash leaks nothing: a turn counts as sent
until its minute is over, and a waiting request that does not ask again in time loses its position
in the queue. When a service rejects a request because there were too many (429), no process sends
to that model before the time that the service gives, for a minute at most; afterwards the rate
doubles every two seconds, instead of returning to its old value at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from redis.asyncio import Redis

from ..failures import LedgerUnavailable
from ..spec import ModelRate
from .keys import Keys
from .lua_scripts import Scripts, milliseconds
from .outage import through_outage

LATE_SECONDS = 1.0
"""A turn that is not used by then is requested again: the process was suspended, or Redis was
slow."""
WINDOW_SECONDS = 60.0 + 2 * LATE_SECONDS
"""A minute as the services count it, and the possible difference of two requests' delays after
their turns."""
DOUBLING_SECONDS = 2.0
"""After a pause one request is sent first, then twice as many in each such interval: 32 in the
first ten seconds, the full rate within half a minute."""
FIRST_PAUSE_SECONDS = 1.0
"""The pause after a rejection that names no time; it doubles until a request is answered."""
LONGEST_PAUSE_SECONDS = 60.0
"""The maximum of a pause, also of one that a service requests: services count by the minute. For
longer ones a model is closed (`model_states.py`): its jobs do not wait in the queue here."""
SOONEST_ASK_SECONDS = 2.0
"""The shortest time after which a waiting request asks again, because others may have stopped
waiting."""
LATEST_ASK_SECONDS = 15.0
"""The longest such time: for that long the request of a dead process keeps its position."""
ASK_SPREAD_SECONDS = 0.002
"""The growth of the longest such time with each waiting request. Beyond 7,500 of them, those at the
end of the queue ask at most 500 times a second together, a few percent of a core of Redis."""
ASK_GRACE_SECONDS = 3.0
"""The delay that is tolerated when it asks again: that of a busy process with hundreds of
agents."""

Wait = Callable[[str], Awaitable[None]]
Send = Callable[[], Awaitable[None]]
Turn = tuple[float, float, bool]
"""Seconds until the request asks again, 0 when it is its turn; seconds until its turn; whether it
waits for the end of a pause."""


async def _nothing(_: str = "") -> None:
    """Do nothing: the default of callbacks."""


class RedisRateLimiter:
    """The turns at all models of one installation.

    Args:
        redis: The client.
        keys: The key names.
        rates: The limits by model, as models are named in settings and definitions; other models
            have none.
        window_seconds: The window over which `per minute` is counted.
    """

    def __init__(
        self,
        redis: Redis,
        keys: Keys,
        rates: Mapping[str, ModelRate],
        *,
        window_seconds: float = WINDOW_SECONDS,
    ) -> None:
        self._rates = rates
        self._window_seconds = window_seconds
        self._run = Scripts(redis, keys, ("model_turn", "model_settle", "model_cut")).run

    async def enter(
        self,
        request: str,
        model: str,
        tokens: int,
        *,
        on_wait: Wait = _nothing,
        on_turn: Send = _nothing,
    ) -> None:
        """Wait until a request may be sent; the caller sends it at once.

        Args:
            request: A unique name of the request.
            model: The model.
            tokens: The tokens that the request may use.
            on_wait: Called once, with the reason, if the request has to wait.
            on_turn: Called just before the request is to be sent; when the call takes too long, the
                request waits for another turn, and it is called again.

        Raises:
            LedgerUnavailable: Redis was unavailable for longer than `OUTAGE_SECONDS`.
        """
        is_reported = False
        while True:
            asked_at = _clock()
            again, wait, is_cut = await through_outage(partial(self._turn, request, model, tokens))
            if not again:
                await on_turn()
                if _clock() - asked_at <= LATE_SECONDS:
                    return
                continue
            if not is_reported:
                is_reported = True
                await on_wait(self._reason(model, wait, is_cut=is_cut))
            await asyncio.sleep(max(again - (_clock() - asked_at), 0))

    async def settle(self, request: str, model: str, tokens: int, used: int) -> None:
        """Record that a request was answered; it counts with the tokens that it used.

        While Redis is unavailable nothing is recorded.

        Args:
            request: The name of the request.
            model: The model.
            tokens: The tokens that it might have used, as in `enter`.
            used: The tokens that it used.
        """
        with contextlib.suppress(LedgerUnavailable):
            await self._run("model_settle", model, request, tokens, used)

    async def cut(
        self, request: str, model: str, tokens: int, asked_seconds: float | None
    ) -> float:
        """Record that a service rejected a request because there were too many.

        Args:
            request: The name of the request.
            model: The model.
            tokens: The tokens that it might have used, as in `enter`.
            asked_seconds: The pause that the service asked for; None when it gave none.

        Returns:
            The seconds for which no process sends to the model; 0 while Redis is unavailable.
        """
        wanted = (
            -1
            if asked_seconds is None
            else milliseconds(min(max(asked_seconds, 0), LONGEST_PAUSE_SECONDS))
        )
        pauses = (milliseconds(FIRST_PAUSE_SECONDS), milliseconds(LONGEST_PAUSE_SECONDS))
        remembered = milliseconds(self._window_seconds + LONGEST_PAUSE_SECONDS)
        with contextlib.suppress(LedgerUnavailable):
            cut = await self._run("model_cut", model, request, tokens, wanted, *pauses, remembered)
            return float(cut) / 1000
        return 0.0

    async def _turn(self, request: str, model: str, tokens: int) -> Turn:
        rate = self._rates.get(model, ModelRate())
        times = (
            LATE_SECONDS,
            DOUBLING_SECONDS,
            SOONEST_ASK_SECONDS,
            LATEST_ASK_SECONDS,
            ASK_GRACE_SECONDS,
            ASK_SPREAD_SECONDS,
        )
        again, *more = await self._run(
            "model_turn",
            model,
            request,
            tokens,
            rate.requests_per_minute or 0,
            rate.tokens_per_minute or 0,
            *map(milliseconds, (self._window_seconds, *times)),
        )
        wait, is_cut = more or (0, 0)
        return float(again) / 1000, float(wait) / 1000, bool(is_cut)

    def _reason(self, model: str, wait_seconds: float, *, is_cut: bool) -> str:
        """Return why a request waits, as a text for people."""
        about = f"about {wait_seconds:.0f} s" if wait_seconds >= 1 else "a moment"
        if is_cut:
            return f"waits {about} for {model}: its service has asked for a pause"
        rate = self._rates.get(model)
        if rate is None:
            return f"waits {about} for {model}: after a pause its rate increases step by step"
        limits = [f"{limit} {name}" for name, limit in rate.named().items()]
        return (
            f"waits {about} for {model}, which has {' and '.join(limits)} a minute (FANOUT_MODELS)"
        )


def _clock() -> float:
    """Return the seconds of a clock that runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
