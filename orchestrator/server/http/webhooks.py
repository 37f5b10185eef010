"""Webhooks of jobs: the routes that add, list and delete them, and those of a submission."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fastapi import APIRouter

from ..notifications.subscriptions import Subscriptions
from ..owned_jobs import OwnedJobs
from ..problems import Problem
from .models import (
    Webhook,
    WebhookList,
    WebhookRequest,
)
from .requests import Jobs, Shared

router = APIRouter(prefix="/v1", tags=["webhooks"])
WITH_THE_JOB = "submission"
"""The id of the webhook in a submission: a repeated submission replaces it."""


@router.post("/jobs/{job_id}/webhooks", status_code=201)
async def add(jobs: Jobs, service: Shared, job_id: str, webhook: WebhookRequest) -> Webhook:
    """Have a URL told of what happens to a job; what has happened already is told at once."""
    subscription = webhook.subscription()
    await jobs.subscribe(job_id, subscription, service.notifications.subscriptions)
    return Webhook.of(subscription)


@router.get("/jobs/{job_id}/webhooks")
async def show(jobs: Jobs, job_id: str) -> WebhookList:
    """Return the webhooks of a job, without their secrets."""
    found = await jobs.subscriptions(job_id)
    return WebhookList(items=[Webhook.of(one) for one in found if one.kind == "webhook"])


@router.delete("/jobs/{job_id}/webhooks/{webhook_id}", status_code=204)
async def remove(jobs: Jobs, job_id: str, webhook_id: str) -> None:
    """Delete a webhook of a job: what was not yet delivered is not."""
    if not await jobs.unsubscribe(job_id, webhook_id):
        raise Problem(404, "The job has no such webhook.")


class AsksForWebhook(Protocol):
    """A request that may contain a webhook."""

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
    """Register the webhooks in the requests of submitted jobs."""
    for request, job_id in zip(requests, job_ids, strict=True):
        if request.webhook:
            subscription = request.webhook.subscription(id=WITH_THE_JOB)
            await jobs.subscribe(job_id, subscription, subscriptions)
