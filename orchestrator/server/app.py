"""The web application: all doors of the service on one origin."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.orchestrator.server.http import approvals, events, health, jobs, runs, snapshots
from fanout.orchestrator.server.http.openapi import describe, operation_name
from fanout.orchestrator.server.http.requests import Service
from fanout.orchestrator.server.middleware import BodyLimit, RequestIds
from fanout.orchestrator.server.problems import add_problems

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
"""Of all responses, unless one has its own: nothing is kept, framed or guessed."""
DESCRIPTION = "Jobs of isolated AI agents: submit, follow, approve, and take their changes."


@dataclass(frozen=True)
class Bounds:
    """What one request may bring."""

    body_bytes: int
    upload_bytes: int
    """Of the archive of a workspace."""


def create_app(
    service: Service,
    bounds: Bounds,
    authentication: Middleware,
    *,
    guards: Sequence[Middleware] = (),
    routes: Sequence[BaseRoute] = (),
) -> FastAPI:
    """Return the application.

    Args:
        service: What all requests share.
        bounds: What one request may bring.
        authentication: Finds the caller of each request.
        guards: What a request passes before its body is read.
        routes: Further routes, such as those of the login.
    """
    app = FastAPI(
        title="fanout",
        version="1",
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=operation_name,
        lifespan=_lifespan,
        middleware=[
            Middleware(RequestIds, headers=HEADERS),
            *guards,
            Middleware(
                BodyLimit,
                max_bytes=bounds.body_bytes,
                larger=dict.fromkeys(("/v1/snapshots", "/v1/runs"), bounds.upload_bytes),
            ),
            authentication,
        ],
    )
    app.state.service = service
    add_problems(app)
    for module in (runs, jobs, snapshots, events, approvals, health):
        app.include_router(module.router)
    app.router.routes.extend(routes)
    describe(app)
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    tasks = [asyncio.create_task(service.changed.run())]
    try:
        yield
    finally:
        for task in tasks:
            await cancel_and_wait(task)
