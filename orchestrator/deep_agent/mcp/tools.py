"""The tools of MCP servers as an agent's tools, named `<server>__<tool>`.

A server is connected from the start of the agent's run until the Runner is closed. ADK leaves out a
toolset that fails and continues without it; here a server that does not start ends the run.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from ...logs import Logger
from ...shortening import one_line
from ..failures import McpServerFailed, ToolMistake
from ..middleware import Middleware
from ..prompts import MCP, MCP_LEFT_OUT
from ..tool import error_result
from .schemas import (
    cut,
    find_fault,
    make_validator,
    shown_schema,
)
from .server import McpServer

if TYPE_CHECKING:  # the SDK takes half a second and 24 MiB to import: only when it is used
    from mcp_types import Tool

    from .connection import McpConnection

log = Logger(__name__)

CONNECTIONS = "fanout.orchestrator.deep_agent.mcp.connection"

MAX_TOOLS = 128
"""Tools of one server: OpenAI accepts no more in a request, and models choose badly among many."""

MAX_NAME_CHARACTERS = 64
"""The longest name of a tool that all model providers accept."""

MAX_NAMED_TOOLS = 30
"""How many of a server's tools an error lists, to help correct the definition, and of how many that
are left out each is reported."""


MAX_QUOTED_CHARACTERS = 100
"""The length of a server's name of a tool in a sentence."""


class McpTools(Middleware, BaseToolset):
    """The tools of MCP servers.

    A tool that cannot be used is left out, and the log says why.

    Args:
        servers: The servers, with unique names.
        report: Gets each sentence about a tool that is left out, for a person.

    Raises:
        ValueError: The servers are no list of `McpServer`.
    """

    def __init__(
        self,
        servers: Sequence[McpServer],
        report: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__()
        is_list = isinstance(servers, Sequence) and not isinstance(servers, str)
        if not is_list or not all(isinstance(server, McpServer) for server in servers):
            raise ValueError(
                "McpTools takes a list of servers, such as "
                'McpTools([McpServer(name="docs", url="https://docs.example/mcp")]).'
            )
        self._servers = servers
        self._report = report
        self._missed: Sequence[str] = ()
        self._connections: list[McpConnection] = []
        self._tools: Sequence[McpTool] = ()
        self._connecting = asyncio.Lock()

    async def before_agent(self, callback_context: CallbackContext) -> None:
        """Connect to all servers before the first model call.

        Raises:
            McpServerFailed: A server did not start.
        """
        del callback_context
        await self._connect()

    async def instruction(self, context: ReadonlyContext, tools: frozenset[str]) -> str:
        """Explain that the tools come from outside, and which of those asked for are not there."""
        del context, tools
        prefixes = [f"{server.name}__" for server in self._servers if server.prefixed]
        text = MCP.format(prefixes=", ".join(prefixes)) if prefixes else ""
        return text + (MCP_LEFT_OUT.format(tools="; ".join(self._missed)) if self._missed else "")

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        """Connect if necessary, and return all tools of all servers.

        Raises:
            McpServerFailed: A server did not start.
        """
        del readonly_context
        await self._connect()
        return list(self._tools)

    async def close(self) -> None:
        """Close all sessions; a later call opens its own again."""
        await asyncio.gather(*(connection.close() for connection in self._connections))

    async def _connect(self) -> None:
        async with self._connecting:
            if self._connections:
                return
            module = await asyncio.to_thread(importlib.import_module, CONNECTIONS)
            connections = [module.McpConnection(server) for server in self._servers]
            try:
                listed = await _all(connection.open() for connection in connections)
                found = [
                    _usable(server, offered, connection)
                    for server, offered, connection in zip(
                        self._servers, listed, connections, strict=True
                    )
                ]
                for usable in found:
                    await self._tell(usable)
            except BaseException:
                await asyncio.gather(*(connection.close() for connection in connections))
                raise
            self._connections = connections
            self._tools = [tool for usable in found for tool in usable.tools]
            self._missed = [each for usable in found for each in usable.missed]

    async def _tell(self, usable: _Usable) -> None:
        """Say which tools of a server are left out."""
        server, left_out = usable.server.name, usable.left_out
        for tool, reason in islice(left_out.items(), MAX_NAMED_TOOLS):
            name = one_line(tool, MAX_QUOTED_CHARACTERS)
            log.warning("mcp tool left out", server=server, tool=name, reason=reason)
            if self._report:
                await self._report(f"mcp server {server}: its tool {name} is left out: {reason}.")
        if self._report and (more := len(left_out) - MAX_NAMED_TOOLS) > 0:
            await self._report(f"mcp server {server}: {more} more of its tools are left out.")


class McpTool(BaseTool):
    """One tool of a server.

    Args:
        name: The tool's name for the model.
        tool: The server's description of it.
        connection: The connection to the server.
    """

    def __init__(self, name: str, tool: Tool, connection: McpConnection) -> None:
        super().__init__(name=name, description=cut(tool.description or tool.title or tool.name))
        self._remote_name = tool.name
        hints = tool.annotations
        self.only_looks = bool(hints and hints.read_only_hint)
        """Whether the server says that the tool changes nothing, so that it may be used to poll."""
        self._connection = connection
        self._shown = shown_schema(tool.input_schema)
        self._validator = make_validator(tool.input_schema)

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name,
            description=self.description,
            parameters_json_schema=self._shown.schema,
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any]:
        """Call the tool; wrong arguments and failures of the server become error results."""
        del tool_context
        given = self._shown.given(args)
        fault = find_fault(self._validator, given)
        if fault is not None:
            return error_result(f"{self.name} was called with wrong arguments: {fault}")
        try:
            return await self._connection.call(self._remote_name, given)
        except ToolMistake as mistake:
            return error_result(str(mistake))


def tool_name(whole: str, *, is_taken: bool = False) -> str:
    """Return a tool's name in the form that every model provider accepts.

    Args:
        whole: The name with the server's as its prefix. One that is too long is cut and ends with
            a hash.
        is_taken: Whether another tool has the name in that form; then it ends with a hash as well.
    """
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", whole)
    if not re.match(r"[a-zA-Z_]", name):
        name = f"_{name}"
    if len(name) <= MAX_NAME_CHARACTERS and not is_taken:
        return name
    mark = hashlib.sha256(whole.encode(errors="replace")).hexdigest()[:8]
    return f"{name[: MAX_NAME_CHARACTERS - 9]}_{mark}"


async def _all(opening: Iterable[Any]) -> list[Any]:
    """Return all results; if one fails, wait for the others too, so that none is left half open."""
    results = await asyncio.gather(*opening, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


@dataclass(frozen=True)
class _Usable:
    """The tools of a server, without those that cannot be used."""

    server: McpServer
    tools: Sequence[McpTool]
    left_out: Mapping[str, str]
    """The others, by the server's names, and why."""

    @property
    def missed(self) -> list[str]:
        """The tools left out that the agent's definition asks for, with the reasons."""
        if self.server.tools is None:
            return []
        return [
            f"{self.server.name}__{one_line(tool, MAX_QUOTED_CHARACTERS)} ({reason})"
            for tool, reason in self.left_out.items()
        ]


def _usable(server: McpServer, offered: Sequence[Tool], connection: McpConnection) -> _Usable:
    """Return the tools of a server under their names for the model.

    Raises:
        McpServerFailed: A tool that the definition asks for is not listed, or there are too many.
    """
    by_name: dict[str, Tool] = {}
    left_out = dict(connection.left_out)
    for tool in offered:
        if by_name.setdefault(tool.name, tool) is not tool:
            left_out[f"{tool.name} (listed again)"] = "the first one of that name is used"
    wanted = list(by_name) if server.tools is None else list(dict.fromkeys(server.tools))
    missing = [name for name in wanted if name not in by_name and name not in left_out]
    if missing:
        raise _not_started(
            server, f"it has no tool {', '.join(missing)}; it has {_some(by_name) or 'none'}"
        )
    left_out = {
        name: why for name, why in left_out.items() if server.tools is None or name in wanted
    }
    wanted = [name for name in wanted if name in by_name]
    if len(wanted) > MAX_TOOLS:
        raise _not_started(
            server, f"it has {len(wanted)} tools, and at most {MAX_TOOLS} can be used; name some"
        )
    tools = []
    for remote, name in _names(server, wanted).items():
        try:
            tools.append(McpTool(name, by_name[remote], connection))
        except RecursionError:
            left_out[remote] = "its schema is nested too deeply"
    return _Usable(server, tools, left_out)


def _names(server: McpServer, tools: Sequence[str]) -> dict[str, str]:
    """Return the names for the model by the server's names.

    Of those that providers would not tell apart, the one that needs no change stays as it is.
    """
    prefix = f"{server.name}__" if server.prefixed else ""
    plain = {tool: tool_name(f"{prefix}{tool}") for tool in tools}
    counts = Counter(plain.values())
    return {
        tool: tool_name(f"{prefix}{tool}", is_taken=counts[name] > 1 and name != f"{prefix}{tool}")
        for tool, name in plain.items()
    }


def _not_started(server: McpServer, reason: str) -> McpServerFailed:
    return McpServerFailed(f"mcp server {server.name} did not start: {reason}.")


def _some(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - MAX_NAMED_TOOLS} more" if len(found) > MAX_NAMED_TOOLS else ""
    return ", ".join(cut(name, MAX_QUOTED_CHARACTERS) for name in found[:MAX_NAMED_TOOLS]) + more
