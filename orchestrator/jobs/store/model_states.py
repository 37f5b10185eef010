"""What the fleet knows of its models: whether each may be asked now, why not, and until when.

One record for each access: a model at an address with a key. The first request that fails for a
reason that all others share closes it: its quota is used up, its service does not answer, its key
was revoked. Until then one request at a time tries it, and the first that is answered opens it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from redis.asyncio import Redis

from ...shortening import count
from ..bounds import MAX_REASON_CHARACTERS, cut_text
from .keys import Keys
from .lua_scripts import Scripts, milliseconds
from .rate_limiter import LONGEST_PAUSE_SECONDS, WINDOW_SECONDS
from .redis_errors import redis_failures

ANSWERED_SECONDS = 2.0
"""How often a process records that a model answers: a failure is not that of all requests if others
were answered since it had failed before, which is at least four seconds ago."""
OPENED_AT_ONCE = 20
"""The jobs that go on in the step that opens a model; the reaper lets the others go on."""
CLOCK_SECONDS = 20 * 3600
"""A time that is further away is named with its day."""
SCRIPTS = ("model_ask", "model_close", "model_answered", "model_reset")


class ModelState(StrEnum):
    """The state of a model at an address with a key."""

    OPEN = "open"
    LIMITED = "limited"
    """Too many requests, for longer than they are repeated."""
    EXHAUSTED = "exhausted"
    """The account has no quota or credit left."""
    AWAY = "away"
    """The service does not answer, or fails, for longer than requests are repeated."""
    REFUSED = "refused"
    """The key is not accepted any more, or the model is gone; both had worked."""


@dataclass(frozen=True)
class Pauses:
    """When a closed model is tried again that does not say when: twice as late each time."""

    first_seconds: float
    longest_seconds: float


PAUSES: Mapping[ModelState, Pauses] = {
    ModelState.LIMITED: Pauses(30, 600),
    ModelState.EXHAUSTED: Pauses(60, 900),
    ModelState.AWAY: Pauses(5, 60),
    ModelState.REFUSED: Pauses(60, 900),
}
"""A service that comes back is found within a minute; quotas are filled up by people or clocks."""


ADVICE: Mapping[ModelState, str] = {
    ModelState.LIMITED: "Its jobs go on by themselves; FANOUT_MODELS sets a lower rate.",
    ModelState.EXHAUSTED: "Its jobs go on when the quota is filled up, or with another key.",
    ModelState.AWAY: "Its jobs go on when its service answers again.",
    ModelState.REFUSED: "Set a key that it accepts: its jobs go on with that.",
}
"""What a person can do about a model that is not open."""


@dataclass(frozen=True)
class ClosedModel:
    """A model that is not to be asked now."""

    name: str
    state: ModelState
    why: str
    """What is wrong, after the model's name: `has no quota left (429: …)`."""
    until: float
    """When it is tried again, in seconds since the epoch by the clock of Redis."""
    access: str = ""
    since: float | None = None
    waiting: int = 0
    """How many jobs wait for it."""

    @property
    def sentence(self) -> str:
        """What a job waits for, as a text for people."""
        return f"model {self.name}, which {self.why}; it is tried again at {trial_time(self.until)}"

    @property
    def waiting_sentence(self) -> str:
        """How many jobs wait for it, as a text for people."""
        waits = "waits" if self.waiting == 1 else "wait"
        return f"{count(self.waiting, 'job')} {waits} for {self.sentence}"


class ModelStates:
    """The models of an installation that are not open.

    Every method raises LedgerUnavailable when Redis does not respond.

    Args:
        redis: The client.
        keys: The key names.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._run = Scripts(redis, keys, SCRIPTS).run

    async def ask(self, access: str, name: str, request: str) -> ClosedModel | bool:
        """Return why a request may not be sent now; else whether it is the trial of a closed model.

        Args:
            access: The model's access.
            name: The model's name.
            request: The request's unique name.
        """
        answer, *closed = await self._run("model_ask", access, request)
        if answer == "closed":
            return _closed(access, name, *closed)
        return bool(answer == "trial")

    async def close(
        self,
        access: str,
        name: str,
        state: ModelState,
        why: str,
        *,
        request: str,
        wait_seconds: float | None,
        must_have_worked: bool,
        failed_for_seconds: float | None,
        interrupts: str = "",
    ) -> ClosedModel | None:
        """Record that a model is not to be asked; None if that is not so.

        Args:
            access: The model's access.
            name: The model's name.
            state: Its new state.
            why: As of `ClosedModel`.
            request: The request that has failed.
            wait_seconds: The time until it may be open again; None: unknown.
            must_have_worked: Whether it is closed only if it has answered before.
            failed_for_seconds: Not closed if another request was answered within that time; None:
                closed nevertheless.
            interrupts: The id of a tree's root. An open model is closed only if it has answered
                since that was submitted; empty: closed nevertheless.
        """
        pauses = PAUSES[state]
        answer = await self._run(
            "model_close",
            access,
            name,
            str(state),
            cut_text(why, MAX_REASON_CHARACTERS),
            -1 if wait_seconds is None else milliseconds(max(wait_seconds, 0)),
            milliseconds(pauses.first_seconds),
            milliseconds(pauses.longest_seconds),
            request,
            int(must_have_worked),
            -1 if failed_for_seconds is None else milliseconds(failed_for_seconds),
            interrupts,
            milliseconds(ANSWERED_SECONDS),
        )
        return None if answer is None else _closed(access, name, *answer)

    async def answered(self, access: str, name: str) -> int:
        """Record that a model has answered; return how many jobs go on that waited for it."""
        increasing = milliseconds(WINDOW_SECONDS + LONGEST_PAUSE_SECONDS)
        woken = await self._run("model_answered", access, name, increasing, OPENED_AT_ONCE)
        return int(woken)

    async def waited_for(self, pool: str) -> dict[str, tuple[str, ...]]:
        """Return the accesses that jobs of a pool's workers have waited for, by agent and model.

        Args:
            pool: The pool.

        Returns:
            `<agent> <model>`, the model empty for the agent's own -> the accesses.
        """
        with redis_failures():
            found: Any = await self._redis.hgetall(self._keys.model_accesses(pool))
        return {what: tuple(stored.split()[1:]) for what, stored in found.items()}

    async def reset(
        self, pool: str, what: str, before: Iterable[str], accesses: Iterable[str]
    ) -> bool:
        """Let the jobs go on whose key or address was changed; False if another process has."""
        both = " ".join(before), " ".join(accesses)
        return bool(await self._run("model_reset", pool, what, *both, OPENED_AT_ONCE))

    async def closed(self) -> list[ClosedModel]:
        """Return the models that are not open, those first that are tried first."""
        with redis_failures():
            accesses: Any = await self._redis.zrange(self._keys.models_closed, 0, -1)
        return list((await self.of(accesses)).values())

    async def awaited(self, job_ids: Sequence[str]) -> dict[str, ClosedModel]:
        """Return for each of these jobs that waits for models the one that is tried first."""
        with redis_failures():
            async with self._redis.pipeline(transaction=False) as pipe:
                for job_id in job_ids:
                    pipe.hget(self._keys.job(job_id), "model_wait")
                found = await pipe.execute()
        accesses = {job: names.split() for job, names in zip(job_ids, found, strict=True) if names}
        known = await self.of(sorted({one for some in accesses.values() for one in some}))
        closed = {
            job: [known[one] for one in some if one in known] for job, some in accesses.items()
        }
        return {job: min(some, key=_trial) for job, some in closed.items() if some}

    async def of(self, accesses: Sequence[str]) -> dict[str, ClosedModel]:
        """Return those of these accesses that are closed."""
        if not accesses:
            return {}
        fields = ["name", "state", "why", "until", "since"]
        with redis_failures():
            async with self._redis.pipeline(transaction=False) as pipe:
                for access in accesses:
                    pipe.hmget(self._keys.model_state(access), fields)
                    pipe.zcard(self._keys.model_waiting(access))
                found = await pipe.execute()
        closed = {}
        for access, values, waiting in zip(accesses, found[::2], found[1::2], strict=True):
            name, state, why, until, since = values
            if state is None or until is None:
                continue
            closed[access] = ClosedModel(
                name=name,
                state=_state(state),
                why=why,
                until=float(until) / 1000,
                access=access,
                since=float(since) / 1000 if since else None,
                waiting=int(waiting),
            )
        return closed


def counted(awaited: Collection[ClosedModel]) -> list[ClosedModel]:
    """Return each model that jobs wait for once, with how many of these do.

    Those come first that are tried first.

    Args:
        awaited: A model for each job.
    """
    jobs = Counter(one.access for one in awaited)
    models = {one.access: one for one in awaited}
    some = (replace(one, waiting=jobs[access]) for access, one in models.items())
    return sorted(some, key=_trial)


def _trial(closed: ClosedModel) -> float:
    return closed.until


def _closed(access: str, name: str, state: str, why: str, until: float | str) -> ClosedModel:
    return ClosedModel(name, _state(state), why, float(until) / 1000, access)


def _state(stored: str) -> ModelState:
    """Return a stored state; one of another release is like an absence."""
    return ModelState(stored) if stored in set(ModelState) else ModelState.AWAY


def trial_time(seconds: float) -> str:
    """Return when a model is tried again as a text for people, with the day if that is not soon."""
    is_near = abs(seconds - time.time()) < CLOCK_SECONDS
    form = "%H:%M:%S UTC" if is_near else "%Y-%m-%d %H:%M UTC"
    return datetime.fromtimestamp(seconds, UTC).strftime(form)
