"""Transports to an MCP server: HTTP, server-sent events, and a process's input and output.

Each is what the SDK calls a transport: a context with two streams of messages, from the server and
to it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2
import mcp_types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import TransportStreams
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from fanout.orchestrator.deep_agent.mcp.server import McpServer, ServerProcess
from fanout.orchestrator.valid_text import clean_json

MAX_MESSAGE_BYTES = 16 << 20
"""The size of a server's message: several large images fit, and so do messages for many jobs."""

CONNECT_SECONDS = 10.0
"""Longer than three lost packets at a connection's start."""

_REQUESTS_LEFT_OPEN_SECONDS = 3600.0
"""The SDK limits the time of calls; this is for the stream on which a server may write at any
time."""


class MessageTooBig(Exception):
    """The server sent a message larger than `MAX_MESSAGE_BYTES`."""


@dataclass
class Trace:
    """Facts about a session that the SDK's errors leave out, to explain a failure."""

    status: int = 200
    """The status of the last HTTP response."""
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

    async def note(response: httpx2.Response) -> None:
        if response.request.method != "DELETE":
            trace.status = response.status_code

    return httpx2.AsyncClient(
        headers={"Accept-Encoding": "identity", **server.headers},  # see `_BoundedStream`
        timeout=httpx2.Timeout(_REQUESTS_LEFT_OPEN_SECONDS, connect=CONNECT_SECONDS),
        event_hooks={"response": [note, _bound]},
    )


async def _bound(response: httpx2.Response) -> None:
    """Limit the size of a response that is read as a whole; events are limited one by one."""
    is_of_events = "event-stream" in response.headers.get("content-type", "")
    is_plain = response.headers.get("content-encoding", "identity") == "identity"
    if is_plain or not is_of_events:
        clean = clean_json if is_plain else bytes  # some compress what was not asked for so
        response.stream = _BoundedStream(response.stream, clean, is_of_events=is_of_events)


class _BoundedStream(httpx2.AsyncByteStream):
    """A response line by line, with its JSON cleaned: an event or a message never has half of one.

    Args:
        stream: The bytes of the response.
        clean: Cleans whole lines.
        is_of_events: Whether the response may go on for ever: then each line is limited.
    """

    def __init__(self, stream: Any, clean: Callable[[bytes], bytes], *, is_of_events: bool) -> None:
        self._stream = stream
        self._clean = clean
        self._is_of_events = is_of_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        line, size = bytearray(), 0
        async for part in self._stream:
            size += len(part)
            line += part
            end = line.rfind(b"\n") + 1
            if (len(line) if self._is_of_events else size) > MAX_MESSAGE_BYTES:
                raise MessageTooBig
            if end:
                yield self._clean(bytes(line[:end]))
                del line[:end]
        if line:
            yield self._clean(bytes(line))

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
        tasks.start_soon(_read_messages, process, to_session)
        tasks.start_soon(_write_messages, process, from_session)
        try:
            yield from_server, to_server
        finally:
            tasks.cancel_scope.cancel()


async def _read_messages(
    process: ServerProcess, to_session: MemoryObjectSendStream[SessionMessage | Exception]
) -> None:
    """Forward the process's messages; other lines are skipped, because some servers print them."""
    line = bytearray()
    while True:
        first, *others = (await process.receive()).split(b"\n")
        line += first
        if len(line) > MAX_MESSAGE_BYTES:
            raise MessageTooBig
        for start_of_next in others:
            with contextlib.suppress(ValueError):
                message = mcp_types.jsonrpc_message_adapter.validate_json(
                    clean_json(bytes(line)), by_name=False
                )
                await to_session.send(SessionMessage(message))
            line = bytearray(start_of_next)


async def _write_messages(
    process: ServerProcess, from_session: MemoryObjectReceiveStream[SessionMessage]
) -> None:
    async for message in from_session:
        text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
        await process.send(text.encode() + b"\n")
