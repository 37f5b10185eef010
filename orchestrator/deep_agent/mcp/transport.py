"""The ways to an MCP server: HTTP, HTTP with server-sent events, and a process's input and output.

Each is what the SDK calls a transport: a context that gives two streams of messages, from the
server and to it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
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

from orchestrator.deep_agent.mcp.server import McpServer, ServerProcess

MAX_MESSAGE_BYTES = 16 << 20
"""One message of a server: several large images fit, and a worker with many jobs can hold it."""

CONNECT_SECONDS = 10.0
"""Longer than three lost packets of a connection's begin."""

_REQUESTS_LEFT_OPEN_SECONDS = 3600.0
"""The SDK ends calls in time; here only the stream that a server may write to at any time is waited
for."""


class MessageTooBig(Exception):
    """The server sent a message above `MAX_MESSAGE_BYTES`."""


@dataclass
class Trace:
    """What explains a session's failure: the SDK's errors do not say it."""

    status: int = 200
    """What the last HTTP request was answered with."""
    process: ServerProcess | None = None


def transport(server: McpServer, trace: Trace) -> contextlib.AbstractAsyncContextManager[Any]:
    """The way to a server, not yet opened."""
    if server.open_process is not None:
        return _process(server.open_process(), trace)
    if server.transport == "sse":
        return _sse(server, trace)
    return _http(server, trace)


@contextlib.asynccontextmanager
async def _http(server: McpServer, trace: Trace) -> AsyncIterator[TransportStreams]:
    async with await asyncio.to_thread(_client, server, trace) as client:
        way = streamable_http_client(
            server.url or "", http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES
        )
        async with way as streams:
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
    """Reads the machine's certificates, which takes a while."""

    async def note(response: httpx2.Response) -> None:
        if response.request.method != "DELETE":
            trace.status = response.status_code

    return httpx2.AsyncClient(
        headers=dict(server.headers),
        timeout=httpx2.Timeout(_REQUESTS_LEFT_OPEN_SECONDS, connect=CONNECT_SECONDS),
        event_hooks={"response": [note, _bound]},
    )


async def _bound(response: httpx2.Response) -> None:
    """Let no answer that is read whole be bigger than a message; events are bounded one by one."""
    if "event-stream" in response.headers.get("content-type", ""):
        return
    response.stream = _BoundedStream(response.stream)


class _BoundedStream(httpx2.AsyncByteStream):
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


@contextlib.asynccontextmanager
async def _process(
    opening: contextlib.AbstractAsyncContextManager[ServerProcess], trace: Trace
) -> AsyncIterator[TransportStreams]:
    """A message a line, as MCP's stdio has it; the process lives as long as the context.

    Its end is an EOFError out of the context.
    """
    to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    streams = (to_session, from_server, to_server, from_session)
    async with opening as process, contextlib.AsyncExitStack() as stack:
        trace.process = process
        for stream in streams:
            await stack.enter_async_context(stream)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        tasks.start_soon(_hear, process, to_session)
        tasks.start_soon(_tell, process, from_session)
        try:
            yield from_server, to_server
        finally:
            tasks.cancel_scope.cancel()


async def _hear(
    process: ServerProcess, to_session: MemoryObjectSendStream[SessionMessage | Exception]
) -> None:
    """Pass on the process's messages.

    Lines that are none are skipped: servers print what they like.
    """
    waiting = bytearray()
    while True:
        first, *others = (await process.receive()).split(b"\n")
        waiting += first
        if len(waiting) > MAX_MESSAGE_BYTES:
            raise MessageTooBig
        for start_of_next in others:
            with contextlib.suppress(ValueError):
                message = mcp_types.jsonrpc_message_adapter.validate_json(
                    bytes(waiting), by_name=False
                )
                await to_session.send(SessionMessage(message))
            waiting = bytearray(start_of_next)


async def _tell(
    process: ServerProcess, from_session: MemoryObjectReceiveStream[SessionMessage]
) -> None:
    async for message in from_session:
        text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
        await process.send(text.encode() + b"\n")
