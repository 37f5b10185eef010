"""The server over streamable HTTP, as a route of the service."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from urllib.parse import urlsplit

from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fanout.orchestrator.server.http.requests import Service, caller_of
from fanout.orchestrator.server.mcp.doors import ServiceDoor
from fanout.orchestrator.server.mcp.server import create_server
from fanout.orchestrator.server.problems import problem_response

PATH = "/mcp"


def mcp_app(service: Service) -> tuple[BaseRoute, AbstractAsyncContextManager[None]]:
    """Return the route of the server, and what has to be open while it serves.

    Every request stands for itself, so that each of several servers can answer it.

    Args:
        service: What all requests share.
    """
    server = create_server(ServiceDoor(service))
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        stateless_http=True,
        # The service checks the hosts of all its doors, and `_Guard` the origin.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    return Route(PATH, endpoint=_Guard(app)), server.session_manager.run()


class _Guard:
    """Lets requests pass that have a caller and do not come from another site's page."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        caller_of(request)  # raises NotAuthenticated, which becomes a problem
        if not _is_same_origin(request.headers):
            text = "Pages of other sites may not use this: send no Origin, or this service's."
            await problem_response(request, 403, text)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _is_same_origin(headers: Headers) -> bool:
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host")
