"""The answers of the middlewares that refuse a request, as RFC 9457 problems."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

POLICY_VIOLATION = 1008
"""The code with which a WebSocket is closed."""


async def refuse(
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    status: int,
    detail: str,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Answer a request with a problem.

    Args:
        scope: The request.
        receive: Its messages.
        send: Sends the answer.
        status: The status of HTTP.
        detail: One sentence that says what to do.
        headers: The headers of the answer.
    """
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": detail})
        return
    problem = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "request_id": scope.get("state", {}).get("request_id", ""),
    }
    response = JSONResponse(
        problem,
        status_code=status,
        headers={"Cache-Control": "no-store", **(headers or {})},
        media_type="application/problem+json",
    )
    await response(scope, receive, send)
