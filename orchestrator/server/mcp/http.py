"""The server over streamable HTTP, as a route of the service."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from mcp.server.transport_security import TransportSecuritySettings
from starlette.routing import BaseRoute

from fanout.orchestrator.server.http.requests import Service
from fanout.orchestrator.server.mcp.doors import ServiceDoor
from fanout.orchestrator.server.mcp.server import create_server

PATH = "/mcp"


def mcp_app(service: Service) -> tuple[list[BaseRoute], AbstractAsyncContextManager[None]]:
    """Return the server's routes, and what has to be open while they serve.

    Every request stands for itself, so that each of several servers can answer it.

    Args:
        service: What all requests share.
    """
    server = create_server(ServiceDoor(service))
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        stateless_http=True,
        # The guards of the service check hosts and origins, for all of its doors alike.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    return app.routes, server.session_manager.run()
