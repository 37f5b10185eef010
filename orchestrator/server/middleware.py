"""What happens to every request around its route: path, id, limit of the body, headers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fanout.orchestrator.server.problems import problem_response
from fanout.orchestrator.valid_text import clean_json, count_values

JSON = "application/json"
REQUEST_ID = "x-request-id"
MAX_VALUES = 100_000
"""In JSON that a request brings: 100 for each of as many jobs as are submitted at once. Parsing
them blocks the server for a tenth of a second; 10 MiB can have 30 times as many."""
_LARGE_BYTES = 256 * 1024
"""From this size on, JSON is cleaned in a thread."""
_USABLE_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")


class PlainPaths:
    """Has a path that ends with slashes mean the same as without them, at every door.

    A redirect would do so only for clients that repeat a body, and credentials, after one.

    Args:
        app: The application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] == "http" and scope["path"].endswith("/"):
            plain = {"path": scope["path"].rstrip("/") or "/"}
            if raw := scope.get("raw_path"):
                plain["raw_path"] = raw.rstrip(b"/") or b"/"
            scope = {**scope, **plain}
        await self._app(scope, receive, send)


class RequestIds:
    """Gives every request an id, which its response and its problems carry.

    Args:
        app: The application.
        headers: Headers of all responses, unless a response has them itself.
    """

    def __init__(self, app: ASGIApp, headers: Mapping[str, str]) -> None:
        self._app = app
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = given if _USABLE_ID.fullmatch(given) else uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = request_id
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers)


class _TooLarge(Exception):
    pass


class BodyLimit:
    """Refuses bodies that are too large, by their announced and by their real length.

    Args:
        app: The application.
        max_bytes: Of a body.
        larger: Path prefix -> another maximum, of bodies that are no JSON: these are read into
            memory.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, larger: Mapping[str, int]) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._larger = larger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        limit = self._limit(scope["path"], headers.get("content-type", ""))
        announced = headers.get("content-length", "0")
        received = 0
        is_begun = False

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise _TooLarge
            return message

        async def noted(message: Message) -> None:
            nonlocal is_begun
            is_begun = True
            await send(message)

        if announced.isdecimal() and int(announced) > limit:
            await _refuse(limit, scope, receive, send)
            return
        try:
            await self._app(scope, counted, noted)
        except _TooLarge:
            if is_begun:
                raise
            await _refuse(limit, scope, receive, send)

    def _limit(self, path: str, kind: str) -> int:
        if kind.partition(";")[0].strip().lower() == JSON:
            return self._max_bytes
        limits = (size for prefix, size in self._larger.items() if path.startswith(prefix))
        return next(limits, self._max_bytes)


class ValidBodies:
    """Replaces what no text can hold in bodies that are JSON: every door behind it takes them.

    JSON with too many values is refused before anything parses it.

    Args:
        app: The application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        kind = Headers(scope=scope).get("content-type", "") if scope["type"] == "http" else ""
        media_type = kind.partition(";")[0].strip().lower()
        if media_type != JSON and not media_type.endswith("+json"):
            await self._app(scope, receive, send)
            return
        body = bytearray()

        async def whole() -> Message:
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return message
                body.extend(message.get("body", b""))
                if not message.get("more_body", False):
                    cleaned = await _checked(bytes(body))
                    body.clear()
                    return {**message, "body": cleaned}

        await self._app(scope, whole, send)


async def _checked(body: bytes) -> bytes:
    """Return JSON cleaned.

    Raises:
        HTTPException: It has too many values.
    """
    if len(body) < _LARGE_BYTES:
        return clean_json(body)
    if count_values(body, MAX_VALUES) > MAX_VALUES:
        raise HTTPException(
            413, f"The body has more than {MAX_VALUES:,} values: send less at once."
        )
    return await asyncio.to_thread(clean_json, body)


async def _refuse(limit: int, scope: Scope, receive: Receive, send: Send) -> None:
    detail = f"The body has more than {limit:,} bytes: send less at once."
    response = problem_response(Request(scope), 413, detail)
    response.headers["Connection"] = "close"
    await response(scope, receive, send)
