"""How much of a server process one caller may use: requests a minute, open requests, streams."""

from __future__ import annotations

from collections import Counter

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fanout.orchestrator.configuration.api_settings import ApiSettings
from fanout.orchestrator.server.access.buckets import Buckets
from fanout.orchestrator.server.access.callers import Caller
from fanout.orchestrator.server.access.refusals import refuse

EVENT_STREAM = "text/event-stream"
FULL_SECONDS = "10"
"""After which a reader tries again when there are too many streams; a balancer finds it another
server."""


class CallerLimits:
    """Refuses what exceeds a caller's share with 429, and streams beyond the process's with 503.

    It counts in its own process, so a caller may use as much again of each further server.

    Args:
        app: The application.
        settings: The limits.
    """

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._requests = Buckets(settings.requests_per_minute)
        self._max_streams = settings.max_streams
        self._max_streams_of_caller = settings.max_streams_of_caller
        self._streams: Counter[str] = Counter()
        self._open: Counter[str] = Counter()
        """Requests that are not answered and are no streams, such as those that wait for a job."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, unless its caller has had enough."""
        caller = scope.get("state", {}).get("caller")
        if not isinstance(caller, Caller):
            await self._app(scope, receive, send)
            return
        name = f"{caller.tenant}/{caller.owner}/{caller.name}"
        wait = self._requests.wait(name)
        if wait:
            await refuse(
                *(scope, receive, send),
                status=429,
                detail="These are too many requests a minute: wait, or ask for many things at "
                "once (lists, ?wait=, streams).",
                headers={"Retry-After": f"{wait + 0.5:.0f}"},
            )
            return
        self._requests.take(name)
        if self._open[name] >= self._max_streams_of_caller:
            await refuse(
                *(scope, receive, send),
                status=429,
                detail="Too many of your requests are not answered yet: wait for some of them.",
                headers={"Retry-After": FULL_SECONDS},
            )
            return
        await self._serve(name, scope, receive, send)

    async def _serve(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, and count it while it is open, or a stream."""
        is_counted = is_refused = False

        async def counted(message: Message) -> None:
            nonlocal is_counted, is_refused
            if is_refused:
                return  # the server tells the application that the client has gone
            if message["type"] == "http.response.start" and _is_stream(message):
                status = self._full_status(name)
                if status is not None:
                    is_refused = True
                    detail = "There are too many open streams: close some, or try again."
                    wait = {"Retry-After": FULL_SECONDS}
                    await refuse(scope, receive, send, status=status, detail=detail, headers=wait)
                    return
                is_counted = True
                self._open[name] -= 1
                self._streams[name] += 1
            await send(message)

        self._open[name] += 1
        try:
            await self._app(scope, receive, counted)
        finally:
            kind = self._streams if is_counted else self._open
            kind[name] -= 1
            if not kind[name]:
                del kind[name]

    def _full_status(self, name: str) -> int | None:
        if self._streams[name] >= self._max_streams_of_caller:
            return 429
        return 503 if self._streams.total() >= self._max_streams else None


def _is_stream(message: Message) -> bool:
    return Headers(raw=list(message["headers"])).get("content-type", "").startswith(EVENT_STREAM)
