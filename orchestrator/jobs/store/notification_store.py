"""`NotificationStore`: the subscriptions to jobs, and the outbox of notifications, in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

from pydantic import ValidationError
from redis.asyncio import Redis

from ..bounds import MAX_REASON_CHARACTERS, cut_text
from ..failures import InvalidJob
from .keys import Keys
from .lua_scripts import Scripts, milliseconds
from .redis_errors import redis_failures
from .subscription import Notification, Subscription

MAX_SUBSCRIPTIONS = 20
"""The most subscriptions to one job: each state change writes a notification for each."""
AWAITED_SECONDS = 24 * 3600
"""How long a subscription waits for the submission of its job."""
AT_ONCE = 4
"""Notifications that one host is sent at the same time, by all processes together: a receiver that
does not answer holds up its own only."""
LEASE_SECONDS = 30.0
"""How long a process may take for a try: three times the time limit of a request."""
HOOK = "!hook"
"""The receiver name of the installation's hook."""
HOOK_KEPT_SECONDS = 24 * 3600
"""How long notifications wait for the process that runs the hook while none does."""

Outcome = Literal["done", "retry", "pass", "gone", "dead"]


class NotificationStore:
    """The subscriptions and the outbox of one installation; any number of processes may share it.

    Every method raises LedgerUnavailable when Redis does not respond.
    """

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        names = ("subscribe", "take_notifications", "settle_notification")
        self._run = Scripts(redis, keys, names, shared=("outbox",)).run

    async def register(self, job_id: str, subscription: Subscription) -> None:
        """Store a subscription, in place of one with the same id.

        It may come before the job is submitted, within a day. When it comes after the job has
        ended or begun to wait for a person, the subscriber is notified of that.

        Raises:
            InvalidJob: The job has too many subscriptions.
        """
        stored, limits = subscription.stored(), (MAX_SUBSCRIPTIONS, AWAITED_SECONDS)
        if not await self._run("subscribe", job_id, subscription.id, stored, *limits):
            raise InvalidJob(
                f"Job {job_id} has {MAX_SUBSCRIPTIONS} subscriptions: delete one of them first."
            )

    async def list(self, job_id: str) -> list[Subscription]:
        """Return a job's subscriptions without their secrets, sorted by id.

        Those of a kind that only another release knows are not among them.
        """
        with redis_failures():
            stored: Any = await self._redis.hgetall(self._keys.subscriptions(job_id))
        found = []
        for _, text in sorted(stored.items()):
            with suppress(ValueError):
                found.append(Subscription.read(text).without_secret())
        return found

    async def get(self, job_id: str, subscription_id: str) -> Subscription | None:
        """Return a subscription without its secret; None if there is none with this id."""
        with redis_failures():
            stored: Any = await self._redis.hget(self._keys.subscriptions(job_id), subscription_id)
        return None if stored is None else Subscription.read(stored).without_secret()

    async def delete(self, job_id: str, subscription_id: str) -> bool:
        """Delete a subscription, and return whether there was one; what is not yet sent is not."""
        with redis_failures():
            return bool(await self._redis.hdel(self._keys.subscriptions(job_id), subscription_id))

    async def is_idle(self) -> bool:
        """Return whether nothing is in the outbox."""
        with redis_failures():
            return not await self._redis.exists(self._keys.receivers)

    async def dead(self, most: int = 100) -> Sequence[dict[str, str]]:
        """Return the newest notifications that were given up, newest first.

        Each has its `id`, `job`, `subscription`, `what`, `receiver`, `tries` and `reason`.
        """
        with redis_failures():
            found: Any = await self._redis.xrevrange(self._keys.dead_notifications, count=most)
        return tuple(fields for _, fields in found)

    # For who sends

    async def expect_hook(self) -> None:
        """Keep events from now on for the process that will run the installation's hook."""
        with redis_failures():
            await self._redis.set(self._keys.hook, 1, ex=HOOK_KEPT_SECONDS)

    async def take(self, most: int, *, runs_hook: bool = False) -> Sequence[Notification]:
        """Take notifications that are due, each for `LEASE_SECONDS`.

        Args:
            most: The maximum number.
            runs_hook: Whether the caller runs the installation's hook; if so, events are kept for
                it from now on, for a day.
        """
        kept = HOOK_KEPT_SECONDS if runs_hook else 0
        lease = milliseconds(LEASE_SECONDS)
        taken = await self._run("take_notifications", most, AT_ONCE, lease, kept)
        found = []
        for fields in taken:
            notification = _notification(fields)
            if notification is None:  # stored by another release, or by another program
                await self._settle((fields[0], fields[1], fields[7]), "dead", "not readable")
            else:
                found.append(notification)
        return found

    async def settle(
        self, sent: Notification, outcome: Outcome, *, again_in: float = 0, reason: str = ""
    ) -> bool:
        """Record the outcome of a try.

        Args:
            sent: The notification.
            outcome: `done`: delivered; `retry`: to be tried again; `pass`: left to another process,
                which is no try; `gone`: the receiver wants no more, so its subscription is deleted;
                `dead`: given up.
            again_in: Seconds until the next try.
            reason: Why a notification was given up, for people; it quotes nothing of the receiver.

        Returns:
            False when the lease had lapsed and another process has taken the notification.
        """
        of = (sent.id, sent.receiver, sent.tries)
        return await self._settle(of, outcome, reason, again_in)

    async def _settle(
        self, taken: tuple[str, str, int], outcome: Outcome, reason: str, again_in: float = 0
    ) -> bool:
        """Settle a try of a notification, given by its id, receiver and number of tries."""
        why = cut_text(reason, MAX_REASON_CHARACTERS)
        outcome_args = (outcome, milliseconds(again_in), why)
        return bool(await self._run("settle_notification", *taken, AT_ONCE, *outcome_args))


def _notification(fields: Sequence[Any]) -> Notification | None:
    """Return what `take_notifications.lua` gave; None when its subscription cannot be read."""
    taken, receiver, job_id, stored, what, source_id, at, tries = fields
    try:
        subscription = Subscription.read(stored) if stored else None
    except (ValidationError, ValueError):
        return None
    of = (str(taken), str(receiver), str(job_id), subscription, str(what), str(source_id))
    return Notification(*of, at=int(at) / 1000, tries=int(tries))
