"""The routes about the installation: its metrics, its workers and queues, and the audit log."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from fanout.orchestrator.client.fleet_view import FleetView
from fanout.orchestrator.configuration.api_settings import Scope
from fanout.orchestrator.jobs.store.audit_stream import AuditPage
from fanout.orchestrator.server.access.audit import MAX_PAGE_ENTRIES
from fanout.orchestrator.server.http.requests import Jobs, Shared
from fanout.orchestrator.server.problems import Problem

router = APIRouter(tags=["service"])

TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "The metrics."}
}


@router.get("/metrics", response_class=Response, responses=TEXT)
async def metrics(jobs: Jobs, shared: Shared) -> Response:
    """Return metrics in the text format of Prometheus; it needs the scope `admin`.

    Those of jobs and workers are of the whole installation, those of requests of this process.
    """
    jobs.caller.require(Scope.ADMIN)
    return Response(await shared.metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


@router.get("/v1/fleet")
async def fleet(jobs: Jobs) -> FleetView:
    """Return what `fanout top` shows: workers, queues and running jobs.

    A caller who does not see all tenants, or lacks the scope `admin`, gets their own jobs only.
    """
    return await jobs.fleet()


@router.get("/v1/audit")
async def audit(
    jobs: Jobs,
    shared: Shared,
    cursor: Annotated[str | None, Query(max_length=50)] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE_ENTRIES)] = 100,
) -> AuditPage:
    """Return what was done and refused, newest first: by those whose jobs the caller may see."""
    try:
        return await shared.audit.page(jobs.caller, cursor, limit)
    except ValueError as error:
        raise Problem(422, str(error)) from None
