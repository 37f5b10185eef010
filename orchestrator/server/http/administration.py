"""The routes for operators: health, release, metrics, workers, the audit log."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel

from ...client.fleet_view import FleetView
from ...configuration.api_settings import Scope
from ...jobs.failures import LedgerUnavailable
from ...jobs.store.audit_stream import AuditPage
from ...version import VERSION
from ..access.audit import MAX_PAGE_ENTRIES
from ..problems import Problem
from .requests import Jobs, Shared

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


class Health(BaseModel):
    """That the process answers, or can serve."""

    status: str = "ok"


class Version(BaseModel):
    """Which release this is."""

    name: str = "fanout"
    version: str


@router.get("/healthz")
async def healthz() -> Health:
    """Return whether this process answers."""
    return Health()


@router.get("/readyz")
async def readyz(shared: Shared) -> Health:
    """Return whether this process can serve: whether Redis answers."""
    try:
        await shared.client.fleet.installation()
    except LedgerUnavailable as failure:
        raise Problem(503, str(failure)) from failure
    return Health()


@router.get("/version")
async def release() -> Version:
    """Return the release."""
    return Version(version=VERSION)
