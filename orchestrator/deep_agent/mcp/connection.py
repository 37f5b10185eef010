"""The session with an MCP server, held by its own asyncio task, and the results of its tools.

A session consists of anyio scopes, which must be left by the task that entered them, but tools are
called from many tasks. So one task opens the session, waits, and closes it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import anyio
import httpx2
import mcp_types
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    REQUEST_TIMEOUT,
    AudioContent,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)
from pydantic import ValidationError

from ...shortening import one_line
from ..failures import (
    McpServerFailed,
    McpServerUnresponsive,
    ToolMistake,
)
from ..tool import error_result
from ..tools.images import MAX_IMAGE_BYTES, detect_media_type
from .schemas import cut, find_fault, make_validator
from .server import McpServer
from .transport import (
    MAX_MESSAGE_BYTES,
    MessageTooBig,
    Trace,
    transport,
)

CLOSE_SECONDS = 1.0
"""How long a session may take to close; a cancelled job must end within two seconds."""

SETTLE_SECONDS = 2.0
"""How long to wait for the reason of a lost session: a process ends, with its last error output."""

MAX_LISTED_TOOLS = 1_000
"""A server that lists more is broken, or its list never ends."""

MAX_LIST_PAGES = 50
"""Pages of a list after the first one; servers have up to 100 tools on each."""

ERROR_OUTPUT_CHARACTERS = 500
"""The end of a server's stderr, quoted when the server does not respond."""

MAX_MESSAGE_CHARACTERS = 2_000
"""The length of a server's error message, as of any other tool's exception."""

MIN_KEY_CHARACTERS = 6
"""A shorter value of a header is no key, and may be in any text."""

_REFUSED = HTTPStatus.BAD_REQUEST
"""The first of the statuses that are errors."""

_TEMPORARY_STATUS = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}

_PROTOCOL_ERRORS = (httpx2.HTTPError, httpx2.InvalidURL, ValueError, RuntimeError)
"""What the SDK and our transports raise when a server sends invalid data."""

MAX_CHECKED_CHARACTERS = 256 * 1024
"""The length of a structured result that is compared with its schema; a longer one would take
seconds, and the comparison only adds a note."""

NOT_STRUCTURED = (
    "The tool promises a structured result and gave a text; take the text as its result."
)
NOT_AS_PROMISED = "The result does not match the tool's own schema of its results, at {fault}"


@dataclass
class _Session:
    """One session: its task, its client and the server's tools."""

    trace: Trace = field(default_factory=Trace)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] = field(init=False)
    client: Client = field(init=False)
    """Set, like `tools`, when the session is ready."""
    tools: list[mcp_types.Tool] = field(init=False)
    calls: int = 0
    """How many are open."""

    async def hold(self, server: McpServer) -> None:
        """Open the session, wait until `closing` is set, and close it."""
        async with anyio.create_task_group() as watching:
            watching.start_soon(self._end_when_refused)
            async with Client(transport(server, self.trace), cache=None) as client:
                received = self.trace.received
                self.tools = await _listed(client, server, received.left_out)
                for name in received.listed.difference(tool.name for tool in self.tools):
                    received.left_out[name] = "its x-mcp-header annotations are invalid"
                self.client = client
                self.ready.set()
                await self.closing.wait()
            watching.cancel_scope.cancel()

    async def _end_when_refused(self) -> None:
        await self.trace.refused.wait()
        raise EOFError(f"it answered HTTP {self.trace.status}")


class _SessionUnknown(Exception):
    """The server does not know a session; the text is the error for the model."""


class McpConnection:
    """The connection to a server; a lost session is opened again by the next call.

    Args:
        server: The server.
    """

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._opening = asyncio.Lock()
        self._session: _Session | None = None

    async def open(self) -> list[mcp_types.Tool]:
        """Connect unless there is a session, and return the server's tools.

        Raises:
            McpServerFailed: The server did not start; the message says why.
        """
        return (await self._opened()).tools

    @property
    def left_out(self) -> Mapping[str, str]:
        """The tools of the session that cannot be used, by the server's names, and why."""
        return self._session.trace.received.left_out if self._session else {}

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool and return its result as `as_result` does.

        Args:
            tool: The server's name of the tool.
            arguments: The arguments.

        Raises:
            ToolMistake: There is no result; the message, for the model, says why.
            Exception: The transport failed for a reason outside of MCP, such as a dead sandbox.
        """
        try:
            return await self._call(tool, arguments)
        except _SessionUnknown:  # the server was restarted: it has done nothing
            pass
        try:
            return await self._call(tool, arguments)
        except _SessionUnknown as error:
            raise ToolMistake(str(error)) from None

    async def _call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool in the open session, or in a new one.

        Raises:
            _SessionUnknown: The server does not know the session.
        """
        try:
            session = await self._opened()
        except McpServerFailed as failure:
            raise ToolMistake(f"{failure} The next call tries again.") from None
        seconds = self._server.timeout_seconds
        session.calls += 1
        try:
            result = await session.client.call_tool(tool, arguments, read_timeout_seconds=seconds)
        except MCPError as error:
            raise await self._call_failure(session, tool, error) from None
        except (ValidationError, RuntimeError):  # the SDK's errors for an invalid result
            raise ToolMistake(f"{tool} returned an invalid result.") from None
        finally:
            session.calls -= 1
            if session is not self._session and not session.calls:
                await _close(session)
        return as_result(result, session.trace.received.output_schemas.get(tool))

    async def close(self) -> None:
        """Close the session; it is closed even if the caller is cancelled."""
        session, self._session = self._session, None
        if session is not None:
            await _close(session)

    async def _opened(self) -> _Session:
        async with self._opening:
            if self._session is None or self._session.task.done():
                self._session = None
                self._session = await self._open()
            return self._session

    async def _open(self) -> _Session:
        session = _Session()
        session.task = asyncio.create_task(session.hold(self._server))
        session.task.add_done_callback(_retrieve_exception)
        starting = asyncio.create_task(session.ready.wait())
        is_open = False
        try:
            await asyncio.wait(
                {starting, session.task},
                timeout=self._server.timeout_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            is_open = session.ready.is_set() and not session.task.done()
            if is_open:
                return session
            raise self._start_failure(session)
        finally:
            starting.cancel()
            if not is_open:
                session.task.cancel()
                await asyncio.wait({session.task}, timeout=CLOSE_SECONDS)

    def _start_failure(self, session: _Session) -> Exception:
        """Return the exception that says why a session did not start."""
        reason, may_pass = self._too_late(session), True
        if session.task.done():
            cause = _cause(session.task)
            known, may_pass = _explain(cause, session.trace.status, self._server)
            if known is None:
                return cause
            reason = known
        kind = McpServerUnresponsive if may_pass and self._server.url else McpServerFailed
        return kind(f"mcp server {self._server.name} did not start: {reason}.")

    def _too_late(self, session: _Session) -> str:
        process = session.trace.process
        errors = process.error_output.decode(errors="replace").strip() if process else ""
        quoted = f": {errors[-ERROR_OUTPUT_CHARACTERS:]}" if errors else ""
        return f"it did not answer within {self._server.timeout_seconds:g} s{quoted}"

    async def _call_failure(self, session: _Session, tool: str, error: MCPError) -> Exception:
        """Return the error for the model of a call that has no result."""
        if error.error.code == REQUEST_TIMEOUT:
            seconds = self._server.timeout_seconds
            return ToolMistake(f"{tool} did not answer within {seconds:g} s.")
        if error.error.code == CONNECTION_CLOSED:
            return ToolMistake(await self._loss(session))
        words = f"{tool} failed: {_words(error, self._server)}"
        status = session.trace.status
        if status < _REFUSED:
            return ToolMistake(words)
        # It may be the session that is refused: the next call has a new one.
        if self._session is session:
            self._session = None
        kind = _SessionUnknown if status == HTTPStatus.NOT_FOUND else ToolMistake
        return kind(f"{words} (HTTP {status})")

    async def _loss(self, session: _Session) -> str:
        """Close a session that was lost during a call, and return the error for the model."""
        await asyncio.wait({session.task}, timeout=SETTLE_SECONDS)
        reason: str | None = "it does not answer any more"
        if session.task.done():
            cause = _cause(session.task)
            reason, _ = _explain(cause, session.trace.status, self._server)
            if reason is None:
                raise cause
        await _close(session)
        return (
            f"mcp server {self._server.name} was lost during the call: {reason}. Whether the call "
            "had an effect is not known; the next call connects again."
        )


async def _listed(
    client: Client, server: McpServer, left_out: dict[str, str]
) -> list[mcp_types.Tool]:
    """Return all tools; a list that goes in a circle, never ends, or fails is cut.

    Args:
        client: The client.
        server: The server.
        left_out: Gets what is cut, and why.
    """
    page = await client.list_tools()
    tools, seen = list(page.tools), set[str]()
    while (cursor := page.next_cursor) and cursor not in seen and len(tools) <= MAX_LISTED_TOOLS:
        rest = f"number {len(tools) + 1} and later"
        if len(seen) == MAX_LIST_PAGES:
            left_out[rest] = f"the list has more than {MAX_LIST_PAGES} pages"
            break
        seen.add(cursor)
        try:
            page = await client.list_tools(cursor=cursor)
        except MCPError as error:
            if error.error.code in {CONNECTION_CLOSED, REQUEST_TIMEOUT}:
                raise
            left_out[rest] = f"the next page of the list failed: {_words(error, server)}"
            break
        tools += page.tools
    return tools


async def _close(session: _Session) -> None:
    session.closing.set()
    asyncio.get_running_loop().call_later(CLOSE_SECONDS, session.task.cancel)
    await asyncio.wait({session.task})


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Retrieve a session's exception, so that asyncio does not log it; the next call reports it."""
    if not task.cancelled():
        task.exception()


def _cause(task: asyncio.Task[None]) -> Exception:
    """Return the exception that ended a session: the first one in its exception groups."""
    if task.cancelled():
        return EOFError("it was closed")
    error = task.exception()
    found = next(_leaves(error), None) if error else None
    return found or EOFError("it closed the connection")


def _leaves(error: BaseException) -> Iterator[Exception]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    elif isinstance(error, Exception):
        yield error


def _explain(cause: Exception, status: int, server: McpServer) -> tuple[str | None, bool]:
    """Return why a session ended, and whether a retry may succeed.

    The reason is None for an exception that has nothing to do with the session.
    """
    if isinstance(cause, httpx2.HTTPStatusError):
        status = cause.response.status_code
    if isinstance(cause, httpx2.HTTPStatusError | MCPError) and status >= _REFUSED:
        may_pass = status in _TEMPORARY_STATUS or status >= HTTPStatus.INTERNAL_SERVER_ERROR
        words = f": {_words(cause, server)}" if isinstance(cause, MCPError) else ""
        return f"it answered HTTP {status}{words}", may_pass
    if isinstance(cause, MCPError):
        code = cause.error.code
        return f"it answered with error {code}: {_words(cause, server)}", code == CONNECTION_CLOSED
    if isinstance(cause, EOFError):
        return str(cause), True
    quoted = _without_keys(one_line(str(cause), ERROR_OUTPUT_CHARACTERS), server)
    if isinstance(cause, httpx2.TransportError | OSError):
        return f"it cannot be reached ({quoted})" if quoted else "it cannot be reached", True
    if isinstance(cause, MessageTooBig):
        return f"it sent a message of more than {MAX_MESSAGE_BYTES >> 20} MiB", False
    if isinstance(cause, ValidationError):
        return "it does not speak MCP: its first answers are invalid", False
    if isinstance(cause, _PROTOCOL_ERRORS):
        return f"it does not speak MCP: {quoted}", False
    return None, False


def _words(error: MCPError, server: McpServer) -> str:
    """Return a server's own words for an error."""
    data = error.error.data
    more = f" {json.dumps(data, ensure_ascii=False, default=str)}" if data else ""
    return _without_keys(cut(error.error.message + more, MAX_MESSAGE_CHARACTERS), server)


def _without_keys(text: str, server: McpServer) -> str:
    """Return a server's text without what its headers say: it may quote a request with a key."""
    for value in server.headers.values():
        for secret in (value, value.rpartition(" ")[2]):
            if len(secret) >= MIN_KEY_CHARACTERS:
                text = text.replace(secret, "…")
    return text


def as_result(
    result: mcp_types.CallToolResult, output_schema: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return an MCP tool's result as `status` with `output`, `result` and `content` where present.

    `output` is text, `result` the structured result, `content` the first image, in the form of
    read_file's, for the model to see. Other media are described in the text.

    Args:
        result: The result.
        output_schema: The tool's schema of its structured results. One that differs counts, with a
            `note`.
    """
    image = _image(result.content)
    text = "\n".join(_text(block) for block in result.content if block is not image)
    structured = result.structured_content
    if result.is_error:
        more = "" if structured is None else json.dumps(structured)
        return error_result(text or more or "The tool failed without a message.")
    found: dict[str, Any] = {"status": "success"}
    if _refers(structured):
        text, structured = "\n".join(filter(None, [text, json.dumps(structured)])), None
    elif structured is not None:
        found["result"] = structured
    if text and not _repeats(text, structured):
        found["output"] = text
    if image is not None:
        found["content"] = {"type": "image", "media_type": image.mime_type, "data": image.data}
    if output_schema is not None and (note := _difference(result, output_schema)):
        found["note"] = note
    return found


def _difference(result: mcp_types.CallToolResult, schema: Mapping[str, Any]) -> str | None:
    """Return a sentence about how a result differs from what its tool promises."""
    structured = result.structured_content
    if structured is None:
        return NOT_STRUCTURED
    if len(json.dumps(structured)) > MAX_CHECKED_CHARACTERS:
        return None
    fault = find_fault(make_validator(schema), structured)
    return None if fault is None else NOT_AS_PROMISED.format(fault=fault)


def _refers(value: Any) -> bool:
    """Return whether a value has a key `$ref`, with which Gemini rejects the whole request."""
    if isinstance(value, dict):
        return "$ref" in value or any(map(_refers, value.values()))
    return isinstance(value, list) and any(map(_refers, value))


def _text(block: mcp_types.ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return f"[{block.type}, {block.mime_type}, {len(block.data) * 3 // 4} bytes: not shown]"
        case ResourceLink():
            return f"[resource {block.name}: {block.uri}]"
        case EmbeddedResource(resource=mcp_types.TextResourceContents() as resource):
            return resource.text
        case EmbeddedResource(resource=resource):
            return f"[resource {resource.uri}, {resource.mime_type or 'binary'}: not shown]"


def _image(blocks: Sequence[mcp_types.ContentBlock]) -> ImageContent | None:
    """Return the first valid image; a provider rejects a whole request for an invalid one."""
    for block in blocks:
        if isinstance(block, ImageContent) and len(block.data) * 3 // 4 <= MAX_IMAGE_BYTES:
            try:
                kind = detect_media_type(base64.b64decode(block.data, validate=True))
            except (binascii.Error, ValueError):
                continue
            if kind == block.mime_type and kind.startswith("image/"):
                return block
    return None


def _repeats(text: str, structured: Any) -> bool:
    """Return whether a text repeats the structured result, as servers do for older clients."""
    if structured is None:
        return False
    candidates = [structured]
    # The SDK wraps values that are not objects.
    if isinstance(structured, dict) and len(structured) == 1:
        candidates += structured.values()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    return value in candidates or text in candidates
