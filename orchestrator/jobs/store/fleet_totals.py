"""The totals of what all workers of an installation have counted, in one hash.

They are no part of a job: what a worker has counted and could not store, because it was killed, is
missing in them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from redis.asyncio import Redis

from ..totals import MODEL, OTHER, SERIES, Label, spent
from .keys import Keys
from .lua_scripts import Scripts
from .redis_errors import redis_failures

MAX_MODELS = 50
"""The most models with totals of their own; further ones are added up as `other`. A job may name
any model, and each has some ten series in a database that keeps them for weeks."""
ADDED_AT_ONCE = 100
"""The most totals that one script call adds: Redis takes a fifth of a millisecond."""
MINUTE_SECONDS = 60
"""The interval for which spending is added up, as in count.lua: people think of money per minute.
"""


@dataclass(frozen=True)
class Spending:
    """The tokens and the money of an interval of Redis's time."""

    tokens: int = 0
    cost_usd: float = 0.0


class FleetTotals:
    """The totals of an installation.

    Every method raises LedgerUnavailable when Redis does not respond.

    Args:
        redis: The client.
        keys: The key names.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._scripts = Scripts(redis, keys, ["count"])

    async def add(self, worker: str, request: str, counted: Mapping[Label, float]) -> None:
        """Add what a worker has counted.

        Args:
            worker: The worker.
            request: A name of this addition: a repetition under the worker's last one adds nothing.
            counted: What was counted, of at most `ADDED_AT_ONCE` labels.
        """
        used = spent(counted)
        arguments: list[str | float] = []
        for label, value in counted.items():
            model, instead = _split_model(label)
            arguments += [_field(label), repr(value), model, _field(instead)]
        tokens, cost = used.input_tokens + used.output_tokens, repr(used.cost_usd or 0.0)
        await self._scripts.run("count", worker, request, MAX_MODELS, tokens, cost, *arguments)

    async def read(self) -> dict[Label, float]:
        """Return all totals."""
        with redis_failures():
            stored = await self._redis.hgetall(self._keys.totals)
        return {tuple(json.loads(field)): float(value) for field, value in stored.items()}

    async def spending(self) -> Spending:
        """Return what was spent in the last minute.

        Spending is stored by whole minutes of Redis's clock. The previous minute counts in
        proportion to the part of it that is within the last 60 seconds.
        """
        with redis_failures():
            seconds, _ = await self._redis.time()
            minute, elapsed = divmod(int(seconds), MINUTE_SECONDS)
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.hgetall(self._keys.spent(minute))
                pipe.hgetall(self._keys.spent(minute - 1))
                now, before = await pipe.execute()
        left = 1 - elapsed / MINUTE_SECONDS
        sums = [
            float(now.get(name, 0)) + left * float(before.get(name, 0))
            for name in ("tokens", "cost_usd")
        ]
        return Spending(tokens=round(sums[0]), cost_usd=sums[1])


def _field(label: Label) -> str:
    return json.dumps(label, separators=(",", ":"))


def _split_model(label: Label) -> tuple[str, Label]:
    """Return the model that a label names, empty for none, and the label of the other models."""
    labels = SERIES[label[0]].labels
    if MODEL not in labels:
        return "", label
    at = 1 + labels.index(MODEL)
    return label[at], (*label[:at], OTHER, *label[at + 1 :])
