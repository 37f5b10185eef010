"""The routes of webhooks: who is told of a job's end."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter

from fanout.orchestrator.jobs.store.notifications.subscription import Subscription
from fanout.orchestrator.server.http.models import Webhook, WebhookList, WebhookRequest
from fanout.orchestrator.server.http.requests import Jobs, Service, Shared
from fanout.orchestrator.server.problems import Problem

KIND = "webhook"

router = APIRouter(prefix="/v1", tags=["webhooks"])


async def checked(service: Service, wanted: WebhookRequest | None) -> Subscription | None:
    """Return the subscription of a webhook that is asked for with a job; None without one.

    Raises:
        InvalidJob: Its URL may not be notified, or its secret is not usable.
    """
    if wanted is None:
        return None
    subscription = wanted.subscription(KIND)
    await service.subscriptions.check(subscription)
    return subscription


async def store(
    service: Service, ids: Sequence[str], subscriptions: Sequence[Subscription | None]
) -> None:
    """Store the subscriptions of jobs that were submitted, in their order."""
    for job_id, subscription in zip(ids, subscriptions, strict=True):
        if subscription is not None:
            await service.subscriptions.store(job_id, subscription)


@router.post("/jobs/{job_id}/webhooks", status_code=201)
async def add(jobs: Jobs, shared: Shared, job_id: str, wanted: WebhookRequest) -> Webhook:
    """Have a URL told when a job ends, or waits for a person; also one that has ended."""
    async with jobs.changing("webhook.add", job_id):
        subscription = wanted.subscription()
        await shared.subscriptions.register(job_id, subscription)
    return Webhook.of(subscription)


@router.get("/jobs/{job_id}/webhooks")
async def listed(jobs: Jobs, shared: Shared, job_id: str) -> WebhookList:
    """Return a job's webhooks, without their secrets."""
    await jobs.get(job_id)
    found = await shared.subscriptions.list(job_id)
    return WebhookList(items=[Webhook.of(one) for one in found if one.kind == KIND])


@router.delete("/jobs/{job_id}/webhooks/{webhook_id}", status_code=204)
async def delete(jobs: Jobs, shared: Shared, job_id: str, webhook_id: str) -> None:
    """Delete a webhook of a job."""
    async with jobs.changing("webhook.delete", job_id):
        known = await shared.subscriptions.list(job_id)
        if not any(one.id == webhook_id and one.kind == KIND for one in known):
            raise Problem(404, "The job has no such webhook.")
        await shared.subscriptions.delete(job_id, webhook_id)
