"""The routes for those who run the service: is it alive, is it ready, which release is it."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

from fanout.orchestrator.jobs.failures import LedgerUnavailable
from fanout.orchestrator.server.http.requests import Shared
from fanout.orchestrator.server.problems import Problem
from fanout.orchestrator.version import VERSION

router = APIRouter(tags=["service"])


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
