"""An HTTP transport to one origin, for answers of a service that nobody here controls.

What a remote agent sends is parsed in the worker's process, beside other jobs. So the transport
bounds the bytes of an answer, the values in its JSON, and all that is received; it accepts no
compressed answer, whose size is known only afterwards; and it sends keys to no other origin.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx

from fanout.orchestrator.jobs.failures import AgentFailed, InvalidJob

MAX_VALUES = 300_000
"""In one answer: its parsing takes a second. Base64 has no commas and brackets, prose a few."""
RECEIVED_ANSWERS = 32
"""How many answers of full size one connection may receive: an endless stream ends."""

NO_JSON = "fanout.no_json"
"""The extension of a request whose answer is not parsed, so that its values are not counted."""

_ENDS_OF_EVENTS = (b"\n\n", b"\r\n\r\n", b"\r\r")


class OneOrigin(httpx.AsyncBaseTransport):
    """Sends requests to one origin, and bounds what comes back.

    Args:
        inner: The transport that is used.
        url: An address of the origin.
        max_bytes: Of one answer, or of one event of a stream.
    """

    def __init__(self, inner: httpx.AsyncBaseTransport, url: str, max_bytes: int) -> None:
        self._inner = inner
        self._origin = origin_of(url)
        self._max_bytes = max_bytes
        self._left_bytes = max_bytes * RECEIVED_ANSWERS

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request.

        Raises:
            InvalidJob: It goes to another origin.
            AgentFailed: The answer is compressed; reading it raises this when it is too large.
            httpx.TransportError: The service is not reached.
        """
        if origin_of(str(request.url)) != self._origin:
            raise InvalidJob(f"A remote agent is called at {self._origin} only.")
        request.headers["accept-encoding"] = "identity"
        response = await self._inner.handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise AgentFailed("The remote agent sent a compressed answer, which was not asked for.")
        is_stream = "text/event-stream" in response.headers.get("content-type", "")
        assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101 - an async transport
        response.stream = _Bounded(
            response.stream, self, is_stream=is_stream, is_json=NO_JSON not in request.extensions
        )
        return response

    def count(self, size: int, values: int, received: int) -> None:
        """Count what was received.

        Args:
            size: The bytes of the answer or event so far.
            values: The values in it so far, about.
            received: The bytes that are new.

        Raises:
            AgentFailed: It is too much.
        """
        self._left_bytes -= received
        if size > self._max_bytes:
            raise AgentFailed(
                f"The remote agent sent more than {self._max_bytes:,} bytes at once; "
                "a2a.max_bytes of its definition gives more."
            )
        if values > MAX_VALUES:
            raise AgentFailed(
                f"The remote agent sent an answer of more than {MAX_VALUES:,} values."
            )
        if self._left_bytes < 0:
            raise AgentFailed(
                f"The remote agent sent more than {RECEIVED_ANSWERS} times {self._max_bytes:,} "
                "bytes; a2a.max_bytes of its definition gives more."
            )

    async def aclose(self) -> None:
        """Close the transport that is used."""
        await self._inner.aclose()


class _Bounded(httpx.AsyncByteStream):
    def __init__(
        self,
        inner: httpx.AsyncByteStream,
        counter: OneOrigin,
        *,
        is_stream: bool,
        is_json: bool,
    ) -> None:
        self._inner = inner
        self._counter = counter
        self._is_stream = is_stream
        self._signs = (b",", b"[", b"{") if is_json else ()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = values = 0
        async for chunk in self._inner:
            newest = chunk[_end_of_events(chunk) :] if self._is_stream else chunk
            if len(newest) < len(chunk):
                size = values = 0
            size += len(newest)
            values += sum(map(newest.count, self._signs))
            self._counter.count(size, values, len(chunk))
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


def _end_of_events(chunk: bytes) -> int:
    """Return where the last complete event of a stream ends in a chunk; 0: none ends in it."""
    return max(chunk.rfind(end) + len(end) if end in chunk else 0 for end in _ENDS_OF_EVENTS)


def origin_of(url: str) -> str:
    """Return an address's scheme, host and port, or an empty text if it has none."""
    try:
        parts = httpx.URL(url)
    except (httpx.InvalidURL, ValueError, TypeError):
        return ""
    standard = {"http": 80, "https": 443}.get(parts.scheme)
    port = parts.port or standard
    return f"{parts.scheme}://{parts.host}:{port}" if standard and parts.host else ""
