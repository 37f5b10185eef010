"""The parts of notifications, put together from the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fanout.orchestrator.configuration.notification_settings import NotificationSettings
from fanout.orchestrator.jobs.store.notification_store import NotificationStore
from fanout.orchestrator.server.notifications.hook import Hook
from fanout.orchestrator.server.notifications.hook_events import JobsToRead
from fanout.orchestrator.server.notifications.messages import MessageBuilder, WebhookMessages
from fanout.orchestrator.server.notifications.notifier import Notifier
from fanout.orchestrator.server.notifications.pinned_http import PinnedHttp
from fanout.orchestrator.server.notifications.receivers import Receivers
from fanout.orchestrator.server.notifications.subscriptions import Subscriptions


@dataclass(frozen=True)
class Notifications:
    """What a process needs that registers subscriptions, and sends."""

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
        builders: What makes the messages of other kinds of subscriptions than webhooks, by kind.

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
