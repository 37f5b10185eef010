"""The web application: all interfaces of the service on one origin."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial

import structlog
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from .. import extras
from ..cancellation import cancel_and_wait
from .http import (
    administration,
    approvals,
    events,
    folders,
    jobs,
    runs,
    scripts,
    webhooks,
)
from .http.openapi import describe, operation_name
from .http.requests import Service
from .middleware import (
    BodyLimit,
    PlainPaths,
    RequestIds,
    TracedRequests,
    ValidBodies,
)
from .problems import add_problems

log = structlog.get_logger(__name__)

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
"""The headers of all responses, unless one has its own: no caching, framing or guessing of types.
"""
RESTART_SECONDS = 1.0
"""The pause before failed background work begins again, so that a permanent fault does not fill the
log."""
ROUTES = (runs, jobs, scripts, events, approvals, webhooks, administration, folders)
"""The modules with the routes of HTTP; an earlier one has priority."""
DESCRIPTION = "Jobs of isolated AI agents: submit, follow, approve, and take their changes."


@dataclass(frozen=True)
class Bounds:
    """The limits of one request."""

    body_bytes: int
    upload_bytes: int
    """The largest archive of a workspace."""
    stall_seconds: float
    """How long a body may be slower than `bytes_per_second`."""
    bytes_per_second: int


def create_app(
    service: Service,
    bounds: Bounds,
    authentication: Middleware,
    *,
    guards: Sequence[Middleware] = (),
    routes: Sequence[BaseRoute] = (),
    public_url: str | None = None,
    background: Sequence[Callable[[], Coroutine[None, None, None]]] = (),
) -> FastAPI:
    """Return the application.

    Args:
        service: What all requests share.
        bounds: The limits of one request.
        authentication: Finds the caller of each request.
        guards: The checks of a request before its body is read.
        routes: Further routes, such as those of the login.
        public_url: The origin under which clients reach the service; None: that of each request.
        background: Work that runs in the background until cancelled.
    """
    mcp_routes, mcp_running = extras.mcp_app(service)
    app = FastAPI(
        title="fanout",
        version="1",
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=operation_name,
        lifespan=partial(_lifespan, mcp_running, [service.changed.run, *background]),
        middleware=[
            Middleware(PlainPaths),
            Middleware(service.metrics.measured),
            Middleware(RequestIds, headers=HEADERS),
            Middleware(TracedRequests),
            *guards,
            Middleware(
                BodyLimit,
                max_bytes=bounds.body_bytes,
                larger=dict.fromkeys(("/v1/snapshots", "/v1/runs"), bounds.upload_bytes),
                stall_seconds=bounds.stall_seconds,
                bytes_per_second=bounds.bytes_per_second,
            ),
            Middleware(ValidBodies),
            authentication,
        ],
    )
    app.state.service = service
    add_problems(app)
    for module in ROUTES:
        app.include_router(module.router)
    app.router.routes.extend([*routes, *extras.a2a_routes(service, public_url), *mcp_routes])
    describe(app)
    return app


async def _kept_running(work: Callable[[], Coroutine[None, None, None]]) -> None:
    """Restart failed background work: requests continue meanwhile, and would hide the failure."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("background_work_failed")
        await asyncio.sleep(RESTART_SECONDS)


@contextlib.asynccontextmanager
async def _lifespan(
    running: contextlib.AbstractAsyncContextManager[None],
    background: Sequence[Callable[[], Coroutine[None, None, None]]],
    app: FastAPI,
) -> AsyncIterator[None]:
    del app
    tasks = [asyncio.create_task(_kept_running(one)) for one in background]
    try:
        async with running:
            yield
    finally:
        for task in tasks:
            await cancel_and_wait(task)
