"""The routes of webhooks: who is told of what happens to a job."""

from __future__ import annotations

from fastapi import APIRouter

from fanout.orchestrator.server.http.models import (
    Webhook,
    WebhookList,
    WebhookRequest,
)
from fanout.orchestrator.server.http.requests import Jobs, Shared
from fanout.orchestrator.server.problems import Problem

router = APIRouter(prefix="/v1", tags=["webhooks"])


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
