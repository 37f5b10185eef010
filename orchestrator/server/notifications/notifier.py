"""The notifier: takes due messages from the outbox, sends them, and records the outcome.

Any number of processes run one. When a process dies, the others send its messages after its leases
have lapsed: a subscriber may get a message twice, with the same id, but misses none. Undelivered
messages are tried again after growing pauses.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import structlog

from ...configuration.notification_settings import NotificationSettings
from ...jobs.failures import LedgerUnavailable, UnknownJob
from ...jobs.store.notification_store import NotificationStore
from ...jobs.store.subscription import APPROVAL, Notification
from .hook import Hook
from .messages import (
    JobsToRead,
    MessageBuilder,
    WebhookMessages,
    describe_end,
    describe_wait,
)
from .receivers import (
    NotSent,
    PinnedHttp,
    ReceiverAnswer,
    Receivers,
    UrlRefused,
)
from .subscriptions import Subscriptions

MAX_TRIES = 11
"""The most tries, over a day: a receiver that is down for a night, or is repaired the next morning,
misses no message."""
FIRST_PAUSE_SECONDS = 5.0
"""The first pause, after which a restarted receiver answers again."""
LONGEST_PAUSE_SECONDS = 6 * 3600.0
"""The longest pause, so that a receiver that is down for a day is tried a few times in the second
half of it."""
GROWTH = 4.0
JITTER = 0.2
"""The part of a pause by which it is shorter or longer, so that messages that failed together are
not tried together."""
LONGEST_WISH_SECONDS = 24 * 3600.0
"""The longest accepted `Retry-After` of a receiver."""
POLL_SECONDS = 0.5
"""The time between two checks of an empty outbox: one command of Redis."""
PASS_SECONDS = 2.0
"""The time before another process is offered a message that this one cannot send; a few of its
checks of the outbox."""
OUTAGE_POLL_SECONDS = 2.0
"""The time between two checks while Redis does not answer."""
MAX_AT_ONCE = 256
"""The most messages that one process sends at the same time: 64 hosts that do not answer leave
room."""
GONE = 410
"""The status with which a receiver ends its subscription."""

log = structlog.get_logger(__name__)


def next_try(tries: int, wish: float | None = None) -> float | None:
    """Return the seconds until the next try, None when there is none.

    Args:
        tries: How often it was tried.
        wish: The seconds that the receiver asks to wait.
    """
    if tries >= MAX_TRIES:
        return None
    pause = min(FIRST_PAUSE_SECONDS * GROWTH ** (tries - 1), LONGEST_PAUSE_SECONDS)
    pause *= random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - no secret
    return max(pause, min(wish or 0.0, LONGEST_WISH_SECONDS))


class Poster(Protocol):
    """Sends a request to a receiver."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> ReceiverAnswer:
        """Return the receiver's answer, or raise UrlRefused or NotSent."""


class Notifier:
    """Sends the notifications of an installation.

    Args:
        store: The outbox.
        poster: Sends requests.
        builders: Kind of subscription -> the builder of its messages; other kinds are left to other
            processes.
        jobs: The jobs of all owners, for the hook.
        hook: The installation's hook, run once for each job without a parent that ends, and for
            each job that begins to wait for a person; by one of the processes that have it.
    """

    def __init__(
        self,
        store: NotificationStore,
        poster: Poster,
        builders: Mapping[str, MessageBuilder],
        *,
        jobs: JobsToRead,
        hook: Hook | None = None,
    ) -> None:
        self._store = store
        self._poster = poster
        self._builders = builders
        self._jobs = jobs
        self._hook = hook
        self._sending: set[asyncio.Task[None]] = set()
        self._settled = asyncio.Event()
        self._has_outage = False

    async def run(self) -> None:
        """Send until cancelled; another process repeats the messages that are being sent then."""
        try:
            while True:
                self._settled.clear()
                if not await self._take():
                    await self._pause(OUTAGE_POLL_SECONDS if self._has_outage else POLL_SECONDS)
        finally:
            for task in self._sending:
                task.cancel()
            await asyncio.gather(*self._sending, return_exceptions=True)

    async def _pause(self, seconds: float) -> None:
        """Wait, but not longer than until a message was sent: then its receiver accepts another."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._settled.wait()

    async def _take(self) -> bool:
        """Begin to send the due messages, and return whether there may be more."""
        room = MAX_AT_ONCE - len(self._sending)
        if room <= 0:
            return False
        try:
            taken = await self._store.take(room, runs_hook=self._hook is not None)
        except LedgerUnavailable as failure:
            if not self._has_outage:  # once, however long it lasts
                log.warning("outbox_unavailable", failure=type(failure).__name__)
            self._has_outage = True
            return False
        self._has_outage = False
        for each in taken:
            task = asyncio.create_task(self._send(each))
            self._sending.add(task)
            task.add_done_callback(self._done)
        return bool(taken)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self._settled.set()

    async def _send(self, sent: Notification) -> None:
        try:
            if sent.subscription is None:
                await self._run_hook(sent)
            else:
                await self._try(sent, sent.subscription.url, sent.subscription.kind)
        except LedgerUnavailable as failure:  # the lease lapses, and it is tried again
            log.warning("outbox_unavailable", failure=type(failure).__name__)
        except Exception:
            log.exception("notification_failed", notification_id=sent.id)
            await self._again(sent, "the message could not be made")

    async def _try(self, sent: Notification, url: str, kind: str) -> None:
        build = self._builders.get(kind)
        if build is None:
            await self._store.settle(sent, "pass", again_in=PASS_SECONDS)
            return
        try:
            message = await build(sent)
            answer = await self._poster.post(url, message.headers, message.body)
        except UnknownJob:
            await self._give_up(sent, "the job no longer exists")
        except (NotSent, UrlRefused) as failure:
            await self._again(sent, str(failure))
        else:
            await self._answered(sent, answer)

    async def _answered(self, sent: Notification, answer: ReceiverAnswer) -> None:
        if 200 <= answer.status < 300:  # noqa: PLR2004 - HTTP's successes
            await self._store.settle(sent, "done")
            log.info("notified", notification_id=sent.id, job_id=sent.job_id, tries=sent.tries)
        elif answer.status == GONE:
            await self._store.settle(sent, "gone")
            log.info("unsubscribed", notification_id=sent.id, job_id=sent.job_id)
        else:
            await self._again(sent, f"status {answer.status}", answer.retry_after)

    async def _again(self, sent: Notification, reason: str, wish: float | None = None) -> None:
        pause = next_try(sent.tries, wish)
        if pause is None:
            await self._give_up(sent, reason)
            return
        await self._store.settle(sent, "retry", again_in=pause)
        of = {"notification_id": sent.id, "job_id": sent.job_id, "tries": sent.tries}
        log.info("notification_delayed", **of, reason=reason, again_in_seconds=round(pause))

    async def _give_up(self, sent: Notification, reason: str) -> None:
        await self._store.settle(sent, "dead", reason=reason)
        of = {"notification_id": sent.id, "job_id": sent.job_id, "tries": sent.tries}
        log.warning("notification_given_up", **of, reason=reason)

    async def _run_hook(self, sent: Notification) -> None:
        """Run the hook at most once: a started hook is not started again after a crash."""
        if self._hook is None:
            return
        try:
            if sent.what == APPROVAL:
                event = await describe_wait(self._jobs, sent.job_id)
            else:
                event = await describe_end(self._jobs, sent.job_id, sent.what)
        except UnknownJob:
            await self._store.settle(sent, "done")
            return
        if await self._store.settle(sent, "done"):
            await self._hook.run(event)


@dataclass(frozen=True)
class Notifications:
    """The parts for registering subscriptions, and for sending."""

    subscriptions: Subscriptions
    notifier: Notifier
    http: PinnedHttp

    async def run(self) -> None:
        """Send until cancelled."""
        try:
            await self.notifier.run()
        finally:
            await self.http.close()


def make_notifications(
    jobs: JobsToRead,
    store: NotificationStore,
    settings: NotificationSettings,
    builders: Mapping[str, MessageBuilder] | None = None,
) -> Notifications:
    """Return the parts for these settings.

    Args:
        jobs: The jobs of all owners: `JobClient`, or `NotificationReader`.
        store: Its outbox.
        settings: The settings.
        builders: The builders of messages of other kinds of subscriptions than webhooks, by kind.

    Raises:
        OSError: The file of certificate authorities cannot be read.
    """
    receivers = Receivers(settings.allowed_hosts, by_proxy=settings.proxy is not None)
    http = PinnedHttp(receivers, ca_file=settings.ca_file, proxy=settings.proxy)
    made: dict[str, MessageBuilder] = {"webhook": WebhookMessages(jobs, settings.base_url or "")}
    made |= builders or {}
    hook = Hook(settings.on_finish) if settings.on_finish else None
    notifier = Notifier(store, http, made, jobs=jobs, hook=hook)
    return Notifications(Subscriptions(store, receivers), notifier, http)
