"""The handling of every request around its route: path, id, limit of the body, headers."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..jobs.trace_context import read_traceparent
from ..tracing import spans
from ..turns import OwnerTurns, TooManyWaiting
from ..valid_text import clean_json, count_values
from .problems import problem_response

JSON = "application/json"
REQUEST_ID = "x-request-id"
TRACEPARENT = "traceparent"
READING = frozenset({"GET", "HEAD", "OPTIONS"})
METHODS = READING | {"POST", "PUT", "PATCH", "DELETE"}
"""The methods that a span may name: a client can send any word."""
SERVER_ERRORS = 500
MAX_VALUES = 100_000
"""The most values in JSON of a request: 100 for each of as many jobs as are submitted at once.
Parsing them blocks the server for a tenth of a second; 10 MiB can have 30 times as many."""
_LARGE_BYTES = 256 * 1024
"""The size from which JSON is checked and cleaned in a thread, in the turn of its caller: 10 MiB
take a tenth of a second, in which Python does little else."""
_turns = OwnerTurns(at_once=2, of_one_owner=1, waiting_of_one_owner=64)
_USABLE_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")


class PlainPaths:
    """Treats a path that ends with slashes as the path without them, at every interface.

    A redirect would only work for clients that repeat a body, and credentials, after one.

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


DISCONNECTED: Message = {"type": "http.disconnect"}
"""The message that an application gets for a request that was refused meanwhile."""


class TracedRequests:
    """Continues the trace of each request's caller, and records requests.

    A request that only reads is recorded only if its caller is traced, because pages and clients
    repeat them.

    Args:
        app: The application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).getlist(TRACEPARENT)
        parent = read_traceparent(given[0]) if len(given) == 1 else None
        method = scope["method"] if scope["method"] in METHODS else "_OTHER"
        with spans.below(parent):
            if parent is None and method in READING:
                await self._app(scope, receive, send)
                return
            with spans.span(method, "server", {"http.request.method": method}) as span:

                async def noted(message: Message) -> None:
                    if message["type"] == "http.response.start":
                        span.set("http.response.status_code", message["status"])
                        if message["status"] >= SERVER_ERRORS:
                            span.fail(str(message["status"]))
                    await send(message)

                try:
                    await self._app(scope, receive, noted)
                finally:
                    if route := getattr(scope.get("route"), "path", None):
                        span.set("http.route", route)
                        span.rename(f"{method} {route}")


class BodyLimit:
    """Refuses bodies that are too large, announced or real, and those that come too slowly.

    Args:
        app: The application.
        max_bytes: The largest body.
        larger: Path prefix -> another maximum, for bodies that are not JSON, which are read into
            memory.
        stall_seconds: How long the application may wait for a body in addition to the time for its
            bytes.
        bytes_per_second: The lowest rate of a body.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_bytes: int,
        larger: Mapping[str, int],
        stall_seconds: float,
        bytes_per_second: int,
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._larger = larger
        self._stall_seconds = stall_seconds
        self._bytes_per_second = bytes_per_second

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        limit = self._limit(scope["path"], headers.get("content-type", ""))
        announced = headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > limit:
            await _refuse(413, _too_large(limit), scope, receive, send)
            return
        received, waited = 0, 0.0
        is_whole = is_begun = is_refused = False

        async def refused(status: int, detail: str) -> Message:
            nonlocal is_refused
            is_refused = True
            if not is_begun:
                await _refuse(status, detail, scope, receive, send)
            return DISCONNECTED

        async def limited() -> Message:
            nonlocal received, waited, is_whole
            if is_refused:
                return DISCONNECTED
            if is_whole:
                return await receive()
            allowed = self._stall_seconds + received / self._bytes_per_second
            began = time.monotonic()
            try:
                async with asyncio.timeout(allowed - waited):
                    message = await receive()
            except TimeoutError:
                return await refused(408, "The body did not come in time: send it faster.")
            waited += time.monotonic() - began
            received += len(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            return await refused(413, _too_large(limit)) if received > limit else message

        async def noted(message: Message) -> None:
            nonlocal is_begun
            if not is_refused:
                is_begun = True
                await send(message)

        try:
            await self._app(scope, limited, noted)
        except Exception:
            if not is_refused:
                raise

    def _limit(self, path: str, kind: str) -> int:
        if kind.partition(";")[0].strip().lower() == JSON:
            return self._max_bytes
        limits = (size for prefix, size in self._larger.items() if path.startswith(prefix))
        return next(limits, self._max_bytes)


class ValidBodies:
    """Replaces invalid characters in JSON bodies, so that every interface accepts them.

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
                    cleaned = await _cleaned(bytes(body), _request_caller(scope))
                    body.clear()
                    return {**message, "body": cleaned}

        await self._app(scope, whole, send)


async def _cleaned(body: bytes, caller: str) -> bytes:
    """Return JSON cleaned.

    Raises:
        HTTPException: It has too many values, or too many bodies of the caller wait for their
            check.
    """
    if len(body) < _LARGE_BYTES:
        return clean_json(body)
    try:
        async with _turns.turn(caller):
            return await asyncio.to_thread(_checked, body)
    except TooManyWaiting:
        raise HTTPException(
            429, "Too many large bodies of yours are being read: wait for some."
        ) from None


def _checked(body: bytes) -> bytes:
    if count_values(body, MAX_VALUES) > MAX_VALUES:
        raise HTTPException(
            413, f"The body has more than {MAX_VALUES:,} values: send less at once."
        )
    return clean_json(body)


def _request_caller(scope: Scope) -> str:
    """Return the caller of a request: the authentication has found it before the body is read."""
    caller = scope.get("state", {}).get("caller")
    return "" if caller is None else f"{caller.tenant}/{caller.owner}/{caller.name}"


def _too_large(limit: int) -> str:
    return f"The body has more than {limit:,} bytes: send less at once."


async def _refuse(status: int, detail: str, scope: Scope, receive: Receive, send: Send) -> None:
    response = problem_response(Request(scope), status, detail)
    response.headers["Connection"] = "close"
    await response(scope, receive, send)
