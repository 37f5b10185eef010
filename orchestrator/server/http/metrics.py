"""The route of the metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from fanout.orchestrator.server.access.callers import Scope
from fanout.orchestrator.server.http.requests import Jobs, Shared

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
