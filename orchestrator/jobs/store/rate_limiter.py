"""Requests and tokens per minute of each model, over all workers and coordinators, and one pause for all.

A request asks for its turn before it is sent. It counts for a minute from then on, with the tokens
that it may take, later with those that it took. A turn is no counter that a crash can leak: what
was given counts as sent until its minute is over, and one who waits and does not ask again in time
has left the row. When a service says that there are too many (429), nobody sends to that model
before the time that it gives; afterwards the rate doubles every two seconds instead of coming back
at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from redis.asyncio import Redis

from orchestrator.jobs.failures import LedgerUnavailable
from orchestrator.jobs.spec import ModelRate
from orchestrator.jobs.store.keys import Keys
from orchestrator.jobs.store.ledger import script_source
from orchestrator.jobs.store.outage import through_outage
from orchestrator.jobs.store.redis_errors import redis_failures

LATE_SECONDS = 1.0
"""A turn that was not used by then is asked for again: the process stood still, or Redis was
slow."""
WINDOW_SECONDS = 60.0 + 2 * LATE_SECONDS
"""A minute as the services count it, and by how much one request may be later after its turn than
another."""
DOUBLING_SECONDS = 2.0
"""After a pause one request goes first, and from then on twice as many in each such time: 32 in the
first ten seconds, in half a minute as many as anybody sends."""
FIRST_PAUSE_SECONDS = 1.0
"""When a service refuses and does not say for how long; doubles until a request is answered."""
LONGEST_PAUSE_SECONDS = 60.0
"""Where the pause stops to grow: services count by the minute."""
LONGEST_CUT_SECONDS = 3600.0
"""The longest wait that a service may ask for; what is used up for a day is tried again each
hour."""
SOONEST_ASK_SECONDS = 2.0
"""A request whose turn is further away asks again after this time at least, to hear that others
have left."""
LATEST_ASK_SECONDS = 15.0
"""And after this at most: it counts as waiting for so long, whatever has become of it."""
ASK_GRACE_SECONDS = 3.0
"""By how much it may be late to ask: a process with hundreds of agents takes that long on a bad
day."""

Wait = Callable[[str], Awaitable[None]]
Send = Callable[[], Awaitable[None]]
Turn = tuple[float, float, bool]


async def _nothing(_: str = "") -> None:
    """What is done where nobody wants to know."""


class RateLimiter:
    """The turns at all models of one installation.

    Args:
        redis: Where they are kept.
        keys: Under which names.
        rates: The limits by model, as models are written in settings and definitions; others have
            none.
        window_seconds: What `per minute` is counted over.
        needs_redis: Whether nothing is sent while Redis is away. A coordinator sends all the same:
            its jobs cannot, as no worker works without Redis, and it has to say what is wrong.
    """

    def __init__(
        self,
        redis: Redis,
        keys: Keys,
        rates: Mapping[str, ModelRate],
        *,
        window_seconds: float = WINDOW_SECONDS,
        needs_redis: bool = True,
    ) -> None:
        self._keys = keys
        self._rates = rates
        self._window_seconds = window_seconds
        self._needs_redis = needs_redis
        names = ("model_turn", "model_settle", "model_cut")
        self._scripts: dict[str, Any] = {
            name: redis.register_script(script_source(name)) for name in names
        }

    async def enter(
        self,
        request: str,
        model: str,
        tokens: int,
        *,
        on_wait: Wait = _nothing,
        on_turn: Send = _nothing,
    ) -> None:
        """Wait until a request may be sent, which is to be done at once; `request` is unique to it.

        `on_wait` is told once, in words, why it does not go at once. `on_turn` is called just
        before the request goes; when that took too long, it waits for another turn and is called
        again.

        Raises:
            LedgerUnavailable: Redis stayed away for longer than `OUTAGE_SECONDS`.
        """
        is_told = False
        while True:
            asked_at = _clock()
            again, wait, is_cut = await self._ask(partial(self._turn, request, model, tokens))
            if not again:
                await on_turn()
                if _clock() - asked_at <= LATE_SECONDS:
                    return
                continue
            if not is_told:
                is_told = True
                await on_wait(self._words(model, wait, is_cut=is_cut))
            await asyncio.sleep(max(again - (_clock() - asked_at), 0))

    async def settle(self, request: str, model: str, tokens: int, used: int) -> None:
        """A request was answered.

        It counts with what it used instead of the `tokens` that it asked for.

        Where Redis is away it goes on to count as it did.
        """
        with contextlib.suppress(LedgerUnavailable):
            await self._run("model_settle", model, request, tokens, used)

    async def cut(
        self, request: str, model: str, tokens: int, asked_seconds: float | None
    ) -> float:
        """A service refused a request because there were too many.

        For how long nobody sends to the model.

        `asked_seconds` is what the service wants, None where it does not say.
        """
        wanted = (
            -1 if asked_seconds is None else _ms(min(max(asked_seconds, 0), LONGEST_CUT_SECONDS))
        )
        pauses = (_ms(FIRST_PAUSE_SECONDS), _ms(LONGEST_PAUSE_SECONDS))
        remembered = _ms(self._window_seconds + LONGEST_PAUSE_SECONDS)
        with contextlib.suppress(LedgerUnavailable):
            cut = await self._run("model_cut", model, request, tokens, wanted, *pauses, remembered)
            return float(cut) / 1000
        return 0.0

    async def _ask(self, turn: Callable[[], Awaitable[Turn]]) -> Turn:
        if self._needs_redis:
            return await through_outage(turn)
        try:
            return await turn()
        except LedgerUnavailable:
            return 0, 0, False

    async def _turn(self, request: str, model: str, tokens: int) -> Turn:
        """Seconds until it asks again, 0 when it is its turn; until its turn.

        Whether a cut is the reason.
        """
        rate = self._rates.get(model, ModelRate())
        times = (
            LATE_SECONDS,
            DOUBLING_SECONDS,
            SOONEST_ASK_SECONDS,
            LATEST_ASK_SECONDS,
            ASK_GRACE_SECONDS,
        )
        again, *more = await self._run(
            "model_turn",
            *(model, request, tokens, rate.requests_per_minute or 0, rate.tokens_per_minute or 0),
            *map(_ms, (self._window_seconds, *times)),
        )
        wait, is_cut = more or (0, 0)
        return float(again) / 1000, float(wait) / 1000, bool(is_cut)

    def _words(self, model: str, wait_seconds: float, *, is_cut: bool) -> str:
        """Why a request waits."""
        about = f"about {wait_seconds:.0f} s" if wait_seconds >= 1 else "a moment"
        if is_cut:
            return f"waits {about} for {model}: its service has asked for a pause"
        rate = self._rates.get(model)
        if rate is None:
            return f"waits {about} for {model}: after a pause its requests begin again one by one"
        limits = [f"{most} {what}" for what, most in rate.named().items()]
        return (
            f"waits {about} for {model}, which has {' and '.join(limits)} a minute (FANOUT_MODELS)"
        )

    async def _run(self, name: str, *arguments: str | int) -> Any:
        with redis_failures():
            return await self._scripts[name](keys=[], args=[self._keys.prefix, *arguments])


def _clock() -> float:
    """Seconds on a clock that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
