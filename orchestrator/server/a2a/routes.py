"""The routes of the protocol: JSON-RPC and HTTP+JSON on one path, and the cards."""

from __future__ import annotations

import hashlib
import json
import logging

from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.server.routes.jsonrpc_routes import create_jsonrpc_routes
from a2a.server.routes.rest_routes import create_rest_routes
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from fanout.orchestrator.jobs.failures import UnknownAgent
from fanout.orchestrator.server.a2a.cards import PATH, card
from fanout.orchestrator.server.a2a.handler import CallerContexts, JobRequestHandler, origin
from fanout.orchestrator.server.http.requests import Service
from fanout.orchestrator.server.problems import Problem

AGENT_PATH = f"{PATH}/agents/{{agent}}"
"""An agent's own address: what is sent there is for this agent."""
CARD_SECONDS = 60
"""How long a client may keep a card: agents change with the configuration, which is seldom."""


def a2a_routes(service: Service, public_url: str | None = None) -> list[BaseRoute]:
    """Return the routes.

    Args:
        service: What all requests share.
        public_url: The origin under which clients reach the service; None: that of each request.
    """
    # The SDK logs requests that it does not understand with what they hold: prompts, files.
    logging.getLogger("a2a").setLevel(logging.CRITICAL)
    handler = JobRequestHandler(service)
    contexts = CallerContexts(public_url)
    routes: list[BaseRoute] = []
    for path in (PATH, AGENT_PATH):
        routes += create_jsonrpc_routes(handler, path, contexts, enable_v0_3_compat=True)
        found = create_rest_routes(handler, contexts, enable_v0_3_compat=True, path_prefix=path)
        # The SDK adds one that takes every path of the application for a tenant.
        routes += [one for one in found if isinstance(one, Route)]
    cards = _Cards(service, public_url)
    routes += [
        Route(AGENT_CARD_WELL_KNOWN_PATH, cards.serve, methods=["GET"]),
        Route(f"{AGENT_PATH}{AGENT_CARD_WELL_KNOWN_PATH}", cards.serve, methods=["GET"]),
    ]
    return routes


class _Cards:
    def __init__(self, service: Service, public_url: str | None) -> None:
        self._client = service.client
        self._public_url = public_url

    async def serve(self, request: Request) -> Response:
        """Return a card, or that the client's copy is still right."""
        agent = request.path_params.get("agent")
        try:
            definitions = await self._client.current_definitions()
            found = card(definitions, origin(request, self._public_url), agent)
        except UnknownAgent as failure:
            raise Problem(404, str(failure)) from None
        shown = agent_card_to_dict(found)
        digest = hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()
        headers = {"ETag": f'W/"{digest}"', "Cache-Control": f"private, max-age={CARD_SECONDS}"}
        if headers["ETag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return JSONResponse(shown, headers=headers)
