"""The route of the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from fanout.orchestrator.jobs.store.access.audit_stream import AuditPage
from fanout.orchestrator.server.access.audit import MAX_PAGE_ENTRIES
from fanout.orchestrator.server.http.requests import Jobs, Shared
from fanout.orchestrator.server.problems import Problem

router = APIRouter(prefix="/v1", tags=["service"])


@router.get("/audit")
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
