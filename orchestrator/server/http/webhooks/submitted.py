"""The webhooks that a submission brings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fanout.orchestrator.server.http.models import WebhookRequest
from fanout.orchestrator.server.notifications.subscriptions import Subscriptions
from fanout.orchestrator.server.owned_jobs import OwnedJobs

WITH_THE_JOB = "submission"
"""The id of the webhook that a submission brings: a repeated submission replaces it."""


class AsksForWebhook(Protocol):
    """A request that may bring a webhook."""

    @property
    def webhook(self) -> WebhookRequest | None:
        """The webhook; None without one."""


async def check_webhooks(requests: Sequence[AsksForWebhook], subscriptions: Subscriptions) -> None:
    """Check the webhooks of jobs before any of these is submitted.

    Raises:
        InvalidJob: A URL may not be notified, or a secret has another form.
    """
    asked = {(one.webhook.url, one.webhook.secret): one.webhook for one in requests if one.webhook}
    for webhook in asked.values():
        await subscriptions.check(webhook.subscription())


async def add_webhooks(
    jobs: OwnedJobs,
    requests: Sequence[AsksForWebhook],
    job_ids: Sequence[str],
    subscriptions: Subscriptions,
) -> None:
    """Register the webhooks that the requests of submitted jobs bring."""
    for request, job_id in zip(requests, job_ids, strict=True):
        if request.webhook:
            subscription = request.webhook.subscription(id=WITH_THE_JOB)
            await jobs.subscribe(job_id, subscription, subscriptions)
