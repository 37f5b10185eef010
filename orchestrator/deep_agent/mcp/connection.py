"""The session with an MCP server, held by a task of its own.

A session is made of anyio scopes, which must be left by the task that entered them; tools are
called from tasks that come and go. So one task opens the session, waits, and closes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import httpx2
import mcp_types
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT
from pydantic import ValidationError

from orchestrator.deep_agent.failures import McpServerFailed, McpServerUnavailable, ToolMistake
from orchestrator.deep_agent.mcp.results import as_result
from orchestrator.deep_agent.mcp.server import McpServer
from orchestrator.deep_agent.mcp.transport import MessageTooBig, Trace, transport

CLOSE_SECONDS = 1.0
"""How long a session may take to say goodbye; a cancelled job is to be gone within two seconds."""

SETTLE_SECONDS = 2.0
"""How long a lost session is given to tell why: a process is awaited, with its last words."""

MAX_LISTED_TOOLS = 1_000
"""A server that lists more has lost count, or never ends."""

LAST_WORDS_CHARACTERS = 500
"""How much of its error output a server that is mute is told with: a traceback's last lines."""

MAX_MESSAGE_CHARACTERS = 2_000
"""Of what a server says of an error: as much as of any other tool's exception."""

_TEMPORARY_STATUS = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}

_NONSENSE = (MessageTooBig, httpx2.HTTPError, httpx2.InvalidURL, ValueError, RuntimeError)
"""What the SDK and our transports raise when what a server sends cannot be understood."""


@dataclass
class _Session:
    """One session: its task, and what it brought."""

    trace: Trace = field(default_factory=Trace)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] = field(init=False)
    client: Client = field(init=False)
    """Set, like the tools, when the session is ready."""
    tools: list[mcp_types.Tool] = field(init=False)

    async def hold(self, server: McpServer) -> None:
        """Open the session, keep it until it is to be closed, close it."""
        async with Client(transport(server, self.trace), cache=None) as client:
            self.tools = await _listed(client)
            self.client = client
            self.ready.set()
            await self.closing.wait()


class McpConnection:
    """A server's session for as long as it is needed.

    A lost one is opened again by the next call.
    """

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._opening = asyncio.Lock()
        self._session: _Session | None = None

    async def open(self) -> list[mcp_types.Tool]:
        """The server's tools; connects unless it is connected.

        Raises:
            McpServerFailed: it did not start; the text says why.
        """
        return (await self._opened()).tools

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Have a tool run; see `as_result`.

        Raises:
            ToolMistake: there is no result; the text, for the model, says why.
            Exception: what the transport raised and does not know, the death of a sandbox say.
        """
        try:
            session = await self._opened()
        except McpServerFailed as failure:
            raise ToolMistake(f"{failure} The next call tries again.") from None
        seconds = self._server.timeout_seconds
        try:
            return as_result(
                await session.client.call_tool(tool, arguments, read_timeout_seconds=seconds)
            )
        except MCPError as error:
            if error.error.code == REQUEST_TIMEOUT:
                raise ToolMistake(f"{tool} did not answer within {seconds:g} s.") from None
            if error.error.code != CONNECTION_CLOSED:
                if (
                    session.trace.status == HTTPStatus.NOT_FOUND
                ):  # so says a server that was started anew
                    await _close(session)
                raise ToolMistake(
                    f"{tool} failed: {error.error.message[:MAX_MESSAGE_CHARACTERS]}"
                ) from None
            raise ToolMistake(await self._loss(session)) from None
        except (
            ValidationError,
            RuntimeError,
        ) as error:  # so the SDK tells of a result that is none
            raise ToolMistake(
                f"{tool} returned what is no result of it ({type(error).__name__})."
            ) from None

    async def close(self) -> None:
        """End the session. It also ends when the caller does not wait for it."""
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
        session.task.add_done_callback(_hear_out)
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
        """Why a session has not begun."""
        reason, may_pass = self._too_late(session), True
        if session.task.done():
            cause = _cause(session.task)
            known, may_pass = _in_words(cause, session.trace.status)
            if known is None:
                return cause
            reason = known
        kind = McpServerUnavailable if may_pass and self._server.url else McpServerFailed
        return kind(f"mcp server {self._server.name} did not start: {reason}.")

    def _too_late(self, session: _Session) -> str:
        process = session.trace.process
        said = process.error_output.decode(errors="replace").strip() if process is not None else ""
        words = f": {said[-LAST_WORDS_CHARACTERS:]}" if said else ""
        return f"it did not answer within {self._server.timeout_seconds:g} s{words}"

    async def _loss(self, session: _Session) -> str:
        """What the model is told of a session that was lost in the middle of a call."""
        await asyncio.wait({session.task}, timeout=SETTLE_SECONDS)
        reason: str | None = "it does not answer any more"
        if session.task.done():
            cause = _cause(session.task)
            reason, _ = _in_words(cause, session.trace.status)
            if reason is None:
                raise cause
        await _close(session)
        return (
            f"mcp server {self._server.name} was lost during the call: {reason}. Whether the call had an "
            "effect is not known; the next call connects again."
        )


async def _listed(client: Client) -> list[mcp_types.Tool]:
    page = await client.list_tools()
    tools = list(page.tools)
    while page.next_cursor and len(tools) <= MAX_LISTED_TOOLS:
        page = await client.list_tools(cursor=page.next_cursor)
        tools += page.tools
    return tools


async def _close(session: _Session) -> None:
    session.closing.set()
    asyncio.get_running_loop().call_later(CLOSE_SECONDS, session.task.cancel)
    await asyncio.wait({session.task})


def _hear_out(task: asyncio.Task[None]) -> None:
    """Take a session's failure: whoever calls next is told of it, or nobody needs to be."""
    if not task.cancelled():
        task.exception()


def _cause(task: asyncio.Task[None]) -> Exception:
    """What ended a session: the first of what its scopes collected."""
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


def _in_words(cause: Exception, status: int) -> tuple[str | None, bool]:
    """Why a session ended, and whether another try may go better.

    None for what is not the session's doing.

    A server's own words are not repeated: they may quote the request with its keys.
    """
    if isinstance(cause, httpx2.HTTPStatusError):
        status = cause.response.status_code
    if isinstance(cause, httpx2.HTTPStatusError | MCPError) and status >= HTTPStatus.BAD_REQUEST:
        may_pass = status in _TEMPORARY_STATUS or status >= HTTPStatus.INTERNAL_SERVER_ERROR
        return f"it answered HTTP {status}", may_pass
    if isinstance(cause, MCPError):
        return f"it answered with error {cause.error.code}", cause.error.code == CONNECTION_CLOSED
    if isinstance(cause, EOFError):
        return str(cause), True
    if isinstance(cause, httpx2.TransportError | OSError):
        return f"it cannot be reached ({type(cause).__name__})", True
    is_nonsense = isinstance(cause, _NONSENSE)
    return (f"it does not speak MCP ({type(cause).__name__})" if is_nonsense else None), False
