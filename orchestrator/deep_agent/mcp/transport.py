"""Transports to an MCP server: HTTP, server-sent events, and a process's input and output.

Each is what the SDK calls a transport: a context with two streams of messages, from the server and
to it. The SDK rejects a message as a whole: one tool with an odd schema would cost all tools, one
unknown block the whole result, and a line that is not JSON the time until its call is given up. So
`Received` keeps what can be read, and makes what cannot be read an error of the one call that it
answers.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import math
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import islice
from typing import Any

import anyio
import httpx2
import mcp_types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import TransportStreams
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
)
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from ...valid_text import clean
from .schemas import (
    arguments_schema,
    cut,
    type_name,
    without_faults,
)
from .server import McpServer, ServerProcess

MAX_MESSAGE_BYTES = 16 << 20
"""The size of a server's message: several large images fit, and so do messages for many jobs."""

CONNECT_SECONDS = 10.0
"""Longer than three lost packets at a connection's start."""

_REQUESTS_LEFT_OPEN_SECONDS = 3600.0
"""The SDK limits the time of calls; this is for the stream on which a server may write at any
time."""

LARGE_BYTES = 256 * 1024
"""A larger message is read in a thread: it would block all other agents for milliseconds."""

MAX_STARTS = 10
"""Places in a line that is not JSON at which a message is looked for; each costs the whole line."""

MAX_DEPTH = 100
"""The deepest nesting of lists and objects in a message: ten times that of a large schema. Reading
a deeper one would need more of Python's stack than there is."""

OLDEST_VERSION = "2024-11-05"
"""The version of MCP that a server is taken to speak if it says none."""

UNREADABLE = "the server's answer is not valid JSON-RPC"

Message = dict[str, Any]
"""A message of JSON-RPC."""

RequestId = int | str

_BLOCKS: TypeAdapter[Any] = TypeAdapter(mcp_types.ContentBlock)

_ID = re.compile(r'"id"\s*:\s*"?(-?\d+)')
_LINE_END = re.compile(rb"(\r\n|\n|\r)")
_START = re.compile(r'\{\s*"(?:jsonrpc|id|result|error)"')


class MessageTooBig(Exception):
    """The server sent a message larger than `MAX_MESSAGE_BYTES`."""


class Received:
    """Reads what a server sends in one session."""

    def __init__(self) -> None:
        self._open: dict[RequestId, str] = {}
        """The methods of the requests without a response."""
        self.output_schemas: dict[str, Mapping[str, Any]] = {}
        """What tools promise of their structured results, by their names. The SDK gets no such
        schema, because it rejects a result that does not match."""
        self.listed: set[str] = set()
        """The names of the tools that can be used."""
        self.left_out: dict[str, str] = {}
        """The tools that cannot be used, by their names, and why."""

    def note_sent(self, message: Mapping[str, Any]) -> None:
        """Note a message to the server: what a response may be depends on its request."""
        if message.get("method") == "notifications/cancelled":
            self._open.pop(message["params"]["requestId"], None)
        elif "method" in message and "id" in message:
            self._open[message["id"]] = message["method"]

    async def messages(self, data: bytes, answers: RequestId | None = None) -> list[Message] | None:
        """Return the requests and responses in a line or a body; None for something else.

        That is, for example, a line of a log. Notifications are left out: nobody here needs them,
        and the SDK logs what is in an invalid one.

        Args:
            data: The line or the body.
            answers: The request that it answers, if the transport says so.
        """
        if len(data) > LARGE_BYTES:
            return await asyncio.to_thread(self._messages, data, answers)
        return self._messages(data, answers)

    def _messages(self, data: bytes, answers: RequestId | None) -> list[Message] | None:
        text = data.decode(errors="replace").strip().removeprefix("\ufeff")
        values = [clean(value) for value in _values(text) if not _is_deep(value)] if text else []
        found = [message for value in values if (message := self._message(value, answers))]
        if any("method" not in message for message in found):
            answers = None
        elif answers is None and not values and '"jsonrpc"' in text:
            match = _ID.search(text)
            answers = self._open_request(int(match[1]) if match else None)
        if answers is not None:
            found.append(self._error(answers, PARSE_ERROR, UNREADABLE))
        return [message for message in found if "id" in message] if found else None

    def _message(self, value: Any, answers: RequestId | None) -> Message | None:
        if not isinstance(value, dict):
            return None
        if "method" in value:
            return _request(value)
        if "jsonrpc" in value or isinstance(value.get("result", value.get("error")), dict):
            request = self._open_request(value.get("id")) if answers is None else answers
            return None if request is None else self._response(request, value)
        return None

    def _open_request(self, given: Any) -> RequestId | None:
        """Return the request that a response names, or the only open one if it names none."""
        if isinstance(given, str) and given not in self._open and given.isdecimal():
            given = int(given)
        if isinstance(given, int | float | str) and not isinstance(given, bool):
            return next((request for request in self._open if request == given), None)
        return next(iter(self._open)) if len(self._open) == 1 else None

    def _response(self, request: RequestId, value: Mapping[str, Any]) -> Message:
        error = value.get("error")
        if error or "result" not in value:
            return self._error(request, *_error_data(error))
        try:
            result = self._result(self._open.get(request), value["result"])
        except ValueError as fault:
            return self._error(request, INTERNAL_ERROR, f"the server's result is invalid: {fault}")
        self._open.pop(request, None)
        return {"jsonrpc": "2.0", "id": request, "result": result}

    def refusal(self, request: RequestId, body: bytes, reason: str) -> Message:
        """Return the error of a request that was refused in words that are not JSON-RPC.

        Args:
            request: The request.
            body: The words; a page, which is for browsers, is not quoted.
            reason: What is said without them.
        """
        words = body.decode(errors="replace").strip()
        is_page = words.startswith("<")
        code = INTERNAL_ERROR
        if self._open.get(request) == "server/discover":
            code = METHOD_NOT_FOUND  # older servers know no such request
        return self._error(request, code, reason if is_page or not words else words)

    def _error(self, request: RequestId, code: int, message: str, data: Any = None) -> Message:
        # The SDK uses two codes for what happens on this side.
        if self._open.pop(request, None) == "tools/call" and code in _CODES_OF_THE_SDK:
            code = INTERNAL_ERROR
        error = {"code": code, "message": message, "data": data}
        return {"jsonrpc": "2.0", "id": request, "error": error}

    def _result(self, method: str | None, result: Any) -> dict[str, Any]:
        """Return a result in the form of its method.

        Raises:
            ValueError: It is none; the message says why.
        """
        if not isinstance(result, dict):
            raise ValueError(f"it is {type_name(result)}, not an object")  # noqa: TRY004 - bad data
        match method:
            case "initialize":
                return _greeting(result)
            case "tools/list":
                return self._listing(result)
            case "tools/call":
                return _call_result(result)
        return result

    def _listing(self, result: Mapping[str, Any]) -> dict[str, Any]:
        listed = result.get("tools") or []
        if not isinstance(listed, list):
            raise ValueError(f"its tools are {type_name(listed)}, not a list")  # noqa: TRY004 - bad data
        tools = [self._tool(raw, number) for number, raw in enumerate(listed, start=1)]
        cursor = result.get("nextCursor")
        more = {"nextCursor": cursor} if cursor and isinstance(cursor, str) else {}
        rest = {key: value for key, value in result.items() if key not in {"_meta", "nextCursor"}}
        return {**rest, "tools": [tool for tool in tools if tool], **more}

    def _tool(self, raw: Any, number: int) -> dict[str, Any] | None:
        """Return a tool with what is used of it; None for one that cannot be used."""
        name = raw.get("name") if isinstance(raw, dict) else None
        if not isinstance(name, str) or not name.strip():
            self.left_out[f"number {number}"] = "it has no name"
            return None
        try:
            schema = arguments_schema(raw.get("inputSchema"))
        except ValueError as fault:
            self.left_out[name] = str(fault)
            return None
        self.listed.add(name)
        if isinstance(raw.get("outputSchema"), dict):
            with suppress(ValueError, RecursionError):
                self.output_schemas[name] = without_faults(raw["outputSchema"])
        hints = raw.get("annotations")
        only_reads = isinstance(hints, dict) and hints.get("readOnlyHint") is True
        texts = {key: raw[key] for key in ("title", "description") if isinstance(raw.get(key), str)}
        return {
            **texts,
            "name": name,
            "inputSchema": schema,
            "annotations": {"readOnlyHint": only_reads},
        }


_CODES_OF_THE_SDK = {CONNECTION_CLOSED, REQUEST_TIMEOUT}


def _request(value: Mapping[str, Any]) -> Message | None:
    """Return a request or a notification of the server."""
    method, params, request = value["method"], value.get("params"), value.get("id")
    if not isinstance(method, str):
        return None
    message: Message = {"jsonrpc": "2.0", "method": method}
    if isinstance(params, dict):
        message["params"] = params
    if isinstance(request, int | str) and not isinstance(request, bool):
        message["id"] = request
    return message


def _error_data(error: Any) -> tuple[int, str, Any]:
    """Return a server's error as its code, its message and its data."""
    if not error:
        return INTERNAL_ERROR, "the server's answer has neither a result nor an error", None
    if not isinstance(error, dict):
        return INTERNAL_ERROR, error if isinstance(error, str) else json.dumps(error), None
    code, message = error.get("code"), error.get("message")
    if not isinstance(message, str) or not message.strip():
        return INTERNAL_ERROR, json.dumps(error), None
    return (code if type(code) is int else INTERNAL_ERROR), message, error.get("data")


def _greeting(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of the first request with what is used of it."""
    version = result.get("protocolVersion")
    return {
        "protocolVersion": version if isinstance(version, str) else OLDEST_VERSION,
        "capabilities": {},
        "serverInfo": {"name": "server", "version": ""},
    }


def _call_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a tool.

    Raises:
        ValueError: It has no content, or asks for something; the message says so.
    """
    if result.get("resultType") not in (None, "complete"):
        asked = cut(str(result["resultType"]), 100)
        raise ValueError(f"it is not complete, but {asked}, which is not supported here")
    content, structured = result.get("content"), result.get("structuredContent")
    if content is None and structured is None:
        raise ValueError(f"it has no content: {cut(json.dumps(result))}")
    blocks = [content] if isinstance(content, str | dict) else content or []
    if not isinstance(blocks, list):
        raise ValueError(f"its content is {type_name(content)}, not a list")  # noqa: TRY004 - bad data
    cleaned = {key: result[key] for key in ("resultType",) if key in result}
    if structured is not None:
        # Older versions of MCP have objects only.
        is_allowed = isinstance(structured, dict) or "resultType" in result
        cleaned["structuredContent"] = structured if is_allowed else {"result": structured}
    is_error = str(result.get("isError")).lower() == "true"
    return {**cleaned, "content": [_block(block) for block in blocks], "isError": is_error}


def _block(block: Any) -> dict[str, Any]:
    """Return a block of a result; one that MCP does not know as a text that names it."""
    if isinstance(block, str):
        return {"type": "text", "text": block}
    if not isinstance(block, dict):
        return {"type": "text", "text": f"[{type_name(block)}: not shown]"}
    known = {key: value for key, value in block.items() if key not in {"annotations", "_meta"}}
    try:
        block_type = _BLOCKS.validate_python(known, by_name=False).type
    except ValidationError:
        text = block.get("text")
        named = f"[{cut(str(block.get('type')), 100)}, of an unknown form: not shown]"
        return {"type": "text", "text": text if isinstance(text, str) else named}
    return {**known, "type": block_type}


def _values(text: str) -> Iterator[Any]:
    """Yield the JSON values of a text: one, those of a list, or responses after something else."""
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        yield from _embedded(text)
    else:
        yield from value if isinstance(value, list) else [value]


def _is_deep(value: Any) -> bool:
    """Return whether a value has more levels than a message may have."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for one in level
            if isinstance(one, (dict, list))
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return True


def _embedded(text: str) -> Iterator[Any]:
    """Yield the responses in a line that begins or ends with something else.

    A request may be our own, which the server writes to a log.
    """
    end = 0
    for start in islice(_START.finditer(text), MAX_STARTS):
        if start.start() < end:
            continue
        try:
            value, end = _DECODER.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            continue
        if "method" not in value:
            yield value


def _finite(number: str) -> float | None:
    return value if math.isfinite(value := float(number)) else None


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=lambda _: None)
"""Reads NaN and infinities, which JSON does not have, as null."""


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
            # That of a followed redirect is a stream.
            trace.received.note_sent(json.loads(await request.aread()))

    async def note_response(response: httpx2.Response) -> None:
        # Servers may refuse the stream of notifications, and the end of a session.
        if response.request.method in ({"GET", "POST"} if has_streams_only else {"POST"}):
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
        request = _request_id(response.request)
        if request is None or response.is_redirect or not is_plain or has_streams_only:
            return
        if response.status_code == HTTPStatus.ACCEPTED:
            return
        # Whatever type a server gives its answer.
        response.headers["content-type"] = "application/json"
        reason = response.reason_phrase if response.is_error else None
        response.stream = _RepairedBody(response.stream, trace.received, request, reason)

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
    """A response with one message, as the SDK accepts it.

    Args:
        stream: The body.
        received: Reads it.
        request: The request that it answers.
        reason: The words of its status if that is an error; a body that is not JSON-RPC then has
            the server's own.
    """

    def __init__(
        self, stream: Any, received: Received, request: RequestId, reason: str | None
    ) -> None:
        self._stream, self._received = stream, received
        self._request, self._reason = request, reason

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = b"".join([part async for part in self._stream])
        if self._reason is None:
            messages = await self._received.messages(body, self._request)
        else:
            messages = await self._received.messages(body)
            messages = messages or [self._received.refusal(self._request, body, self._reason)]
        # A body has one message; the last one is the response.
        yield to_json(messages[-1]) if messages else body

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Event:
    """The lines of a server-sent event."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        """The values of its lines of data."""
        self.others: list[bytes] = []
        self.is_message = True
        """Whether it may have a message; the first one of the older transport has an address."""
        self._size = 0

    def add(self, line: bytes) -> None:
        """Add a line.

        Raises:
            MessageTooBig: They are too many.
        """
        name, _, value = line.removeprefix(codecs.BOM_UTF8).partition(b":")
        self._size += len(line)
        if self._size > MAX_MESSAGE_BYTES:
            raise MessageTooBig
        if name == b"data":
            self.data.append(value.removeprefix(b" "))
            return
        self.others.append(line)
        if name == b"event":
            self.is_message = value.strip() in {b"", b"message"}


class _RepairedEvents(httpx2.AsyncByteStream):
    """A stream of server-sent events, whose messages are as the SDK accepts them."""

    def __init__(self, stream: Any, received: Received) -> None:
        self._stream, self._received = stream, received

    async def __aiter__(self) -> AsyncIterator[bytes]:
        rest = bytearray()
        event = _Event()
        async for part in self._stream:
            if not _LINE_END.search(part):
                rest += part
                if len(rest) > MAX_MESSAGE_BYTES:
                    raise MessageTooBig
                continue
            *lines, last = _LINE_END.split(bytes(rest) + part)
            rest = bytearray(last)
            for line in lines[::2]:
                if line:
                    event.add(line)
                else:
                    yield await self._repaired(event)
                    event = _Event()
        if rest:
            event.add(bytes(rest))
        if event.data:
            yield await self._repaired(event)

    async def _repaired(self, event: _Event) -> bytes:
        """Return an event as the SDK accepts it; one that has data, but no message, is skipped."""
        data = b"\n".join(event.data)
        messages = await self._received.messages(data) if event.is_message and data else None
        if messages is not None:
            # Several in one become events of their own.
            texts = [b"data: " + to_json(one) + b"\n" for one in messages]
        else:
            texts = [] if event.is_message else [b"data: " + line + b"\n" for line in event.data]
        return b"".join(line + b"\n" for line in event.others) + b"\n".join(texts) + b"\n"

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
