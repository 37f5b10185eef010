"""The notifier: takes what is due from the outbox, sends it, and records what became of it.

Any number of processes run one. A process that dies leaves what it was sending to the others, when
its leases lapse: a subscriber may get a message twice, with the same id, and misses none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

import structlog

from fanout.orchestrator.jobs.failures import LedgerUnavailable, UnknownJob
from fanout.orchestrator.jobs.store.notification_store import NotificationStore
from fanout.orchestrator.jobs.store.subscription import APPROVAL, Notification
from fanout.orchestrator.server.notifications.hook import Hook
from fanout.orchestrator.server.notifications.hook_events import JobsToRead, end_of, wait_of
from fanout.orchestrator.server.notifications.messages import MessageBuilder
from fanout.orchestrator.server.notifications.pinned_http import Answer, NotSent
from fanout.orchestrator.server.notifications.receivers import UrlRefused
from fanout.orchestrator.server.notifications.retry_times import next_try

POLL_SECONDS = 0.5
"""Between two looks at an outbox with nothing to send: one command of Redis."""
PASS_SECONDS = 2.0
"""Before another process is offered what this one cannot send; a few of its looks at the outbox."""
OUTAGE_POLL_SECONDS = 2.0
"""Between two looks while Redis does not answer."""
MAX_AT_ONCE = 256
"""Messages that one process sends at the same time: 64 hosts that do not answer leave room."""
GONE = 410
"""The status by which a receiver ends its subscription."""

log = structlog.get_logger(__name__)


class Poster(Protocol):
    """Sends a request to a receiver."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Return what the receiver answered, or raise UrlRefused or NotSent."""


class Notifier:
    """Sends the notifications of an installation.

    Args:
        store: The outbox.
        poster: Sends requests.
        builders: Kind of subscription -> what makes its messages; what has none is left to other
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
        """Send until cancelled; what is being sent then is sent again by another process."""
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
        """Wait, but not longer than until a message was sent: its receiver has room for another."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._settled.wait()

    async def _take(self) -> bool:
        """Begin to send what is due, and return whether there may be more."""
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
            await self._give_up(sent, "the job does not exist any more")
        except (NotSent, UrlRefused) as failure:
            await self._again(sent, str(failure))
        else:
            await self._answered(sent, answer)

    async def _answered(self, sent: Notification, answer: Answer) -> None:
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
        """Run the hook, at most once: what was started is not started again after a crash."""
        if self._hook is None:
            return
        try:
            if sent.what == APPROVAL:
                event = await wait_of(self._jobs, sent.job_id)
            else:
                event = await end_of(self._jobs, sent.job_id, sent.what)
        except UnknownJob:
            await self._store.settle(sent, "done")
            return
        if await self._store.settle(sent, "done"):
            await self._hook.run(event)
