"""Transports to an MCP server: HTTP, server-sent events, and a process's input and output.

Each is what the SDK calls a transport: a context with two streams of messages, from the server and
to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2
import mcp_types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import TransportStreams
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from pydantic_core import to_json

from fanout.orchestrator.deep_agent.mcp.received import Received, RequestId
from fanout.orchestrator.deep_agent.mcp.server import McpServer, ServerProcess

MAX_MESSAGE_BYTES = 16 << 20
"""The size of a server's message: several large images fit, and so do messages for many jobs."""

CONNECT_SECONDS = 10.0
"""Longer than three lost packets at a connection's start."""

_REQUESTS_LEFT_OPEN_SECONDS = 3600.0
"""The SDK limits the time of calls; this is for the stream on which a server may write at any
time."""


class MessageTooBig(Exception):
    """The server sent a message larger than `MAX_MESSAGE_BYTES`."""


_LINE_END = re.compile(rb"(\r\n|\n|\r)")


@dataclass
class Trace:
    """Facts about a session that the SDK's errors leave out, to explain a failure."""

    received: Received = field(default_factory=Received)
    status: int = 200
    """The status of the last HTTP response."""
    refused: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a message was refused in a way that the SDK does not notice."""
    process: ServerProcess | None = None


def transport(server: McpServer, trace: Trace) -> contextlib.AbstractAsyncContextManager[Any]:
    """Return the transport to a server, not yet opened.

    Args:
        server: The server.
        trace: Filled while the transport is in use.
    """
    if server.open_process is not None:
        return _process(server.open_process(), trace)
    if server.transport == "sse":
        return _sse(server, trace)
    return _http(server, trace)


@contextlib.asynccontextmanager
async def _http(server: McpServer, trace: Trace) -> AsyncIterator[TransportStreams]:
    async with await asyncio.to_thread(_client, server, trace) as client:
        opening = streamable_http_client(
            server.url or "", http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES
        )
        async with opening as streams:
            yield streams


@contextlib.asynccontextmanager
async def _sse(server: McpServer, trace: Trace) -> AsyncIterator[TransportStreams]:
    client = await asyncio.to_thread(_client, server, trace)

    def give(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        del headers, timeout, auth  # ours are in the client
        return client

    async with sse_client(server.url or "", httpx_client_factory=give) as streams:
        yield streams


def _client(server: McpServer, trace: Trace) -> httpx2.AsyncClient:
    """Return an HTTP client. It blocks, because it reads the machine's certificates."""
    has_streams_only = server.transport == "sse"

    async def note_request(request: httpx2.Request) -> None:
        if request.method == "POST":
            trace.received.note_sent(json.loads(request.content))

    async def note_response(response: httpx2.Response) -> None:
        if response.request.method != "DELETE":
            trace.status = response.status_code
        if has_streams_only and response.request.method == "POST" and response.is_error:
            trace.refused.set()

    async def repair(response: httpx2.Response) -> None:
        content_type = response.headers.get("content-type", "").lower()
        is_plain = response.headers.get("content-encoding", "identity") == "identity"
        if content_type.startswith("text/event-stream"):
            if is_plain:
                response.stream = _RepairedEvents(response.stream, trace.received)
            return  # the SDK limits the size of an event
        response.stream = _BoundedStream(response.stream)
        if is_plain and content_type.startswith("application/json") and not has_streams_only:
            request = None if response.is_error else _request_id(response.request)
            response.stream = _RepairedBody(response.stream, trace.received, request)

    return httpx2.AsyncClient(
        headers={"accept-encoding": "identity", **server.headers},
        timeout=httpx2.Timeout(_REQUESTS_LEFT_OPEN_SECONDS, connect=CONNECT_SECONDS),
        event_hooks={"request": [note_request], "response": [note_response, repair]},
    )


def _request_id(request: httpx2.Request) -> RequestId | None:
    """Return the id of the JSON-RPC request that an HTTP request carries; None if it has none."""
    message = json.loads(request.content) if request.method == "POST" else {}
    found: RequestId | None = message.get("id") if "method" in message else None
    return found


class _BoundedStream(httpx2.AsyncByteStream):
    """A response that is read as a whole, limited in size."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_MESSAGE_BYTES
        async for part in self._stream:
            left -= len(part)
            if left < 0:
                raise MessageTooBig
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


class _RepairedBody(httpx2.AsyncByteStream):
    """A response with one message, as the SDK accepts it."""

    def __init__(self, stream: Any, received: Received, request: RequestId | None) -> None:
        self._stream, self._received, self._request = stream, received, request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = b"".join([part async for part in self._stream])
        messages = await self._received.messages(body, self._request)
        # A body has one message; the last one is the response.
        yield to_json(messages[-1]) if messages else body

    async def aclose(self) -> None:
        await self._stream.aclose()


class _RepairedEvents(httpx2.AsyncByteStream):
    """A stream of server-sent events, whose messages are as the SDK accepts them."""

    def __init__(self, stream: Any, received: Received) -> None:
        self._stream, self._received = stream, received

    async def __aiter__(self) -> AsyncIterator[bytes]:
        rest = bytearray()
        async for part in self._stream:
            if not _LINE_END.search(part):
                rest += part
                if len(rest) > MAX_MESSAGE_BYTES:
                    raise MessageTooBig
                continue
            *lines, last = _LINE_END.split(bytes(rest) + part)
            rest = bytearray(last)
            for line, end in zip(lines[::2], lines[1::2], strict=True):
                yield await self._repaired(line) + end
        if rest:
            yield await self._repaired(bytes(rest))

    async def _repaired(self, line: bytes) -> bytes:
        if not line.startswith(b"data:"):
            return line
        messages = await self._received.messages(line.removeprefix(b"data:"))
        if messages is None:
            return line
        # Several in one line become events of their own; an event without data is skipped.
        return b"\n\n".join(b"data: " + to_json(one) for one in messages)

    async def aclose(self) -> None:
        await self._stream.aclose()


@contextlib.asynccontextmanager
async def _process(
    opening: contextlib.AbstractAsyncContextManager[ServerProcess], trace: Trace
) -> AsyncIterator[TransportStreams]:
    """Exchange one message per line with a process, which runs as long as the context is open.

    Raises:
        EOFError: The process ended.
    """
    to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    streams = (to_session, from_server, to_server, from_session)
    async with opening as process, contextlib.AsyncExitStack() as stack:
        trace.process = process
        for stream in streams:
            await stack.enter_async_context(stream)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        tasks.start_soon(_read_messages, process, to_session, trace.received)
        tasks.start_soon(_write_messages, process, from_session, trace.received)
        try:
            yield from_server, to_server
        finally:
            tasks.cancel_scope.cancel()


async def _read_messages(
    process: ServerProcess,
    to_session: MemoryObjectSendStream[SessionMessage | Exception],
    received: Received,
) -> None:
    """Forward the process's messages; other lines are skipped, because some servers print them."""
    line = bytearray()
    while True:
        first, *others = (await process.receive()).split(b"\n")
        line += first
        if len(line) > MAX_MESSAGE_BYTES:
            raise MessageTooBig
        for start_of_next in others:
            for message in await received.messages(bytes(line)) or ():
                parsed = mcp_types.jsonrpc_message_adapter.validate_python(message, by_name=False)
                await to_session.send(SessionMessage(parsed))
            line = bytearray(start_of_next)


async def _write_messages(
    process: ServerProcess,
    from_session: MemoryObjectReceiveStream[SessionMessage],
    received: Received,
) -> None:
    async for message in from_session:
        sent = message.message.model_dump(by_alias=True, exclude_unset=True, mode="json")
        received.note_sent(sent)
        await process.send(to_json(sent) + b"\n")
