"""The tools of MCP servers as an agent's tools, named `<server>__<tool>`.

A server is connected from the start of the agent's run until the Runner is closed. ADK leaves out a
toolset that fails and continues without it; here a server that does not start ends the run.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from jsonschema.validators import extend, validator_for
from referencing import Registry

from fanout.orchestrator.deep_agent.failures import McpServerFailed, ToolMistake
from fanout.orchestrator.deep_agent.mcp.server import McpServer
from fanout.orchestrator.deep_agent.middleware import Middleware
from fanout.orchestrator.deep_agent.prompts import MCP
from fanout.orchestrator.deep_agent.tool import error_result

if TYPE_CHECKING:  # the SDK takes half a second and 24 MiB to import: only when it is used
    from mcp_types import Tool

    from fanout.orchestrator.deep_agent.mcp.connection import McpConnection

CONNECTIONS = "fanout.orchestrator.deep_agent.mcp.connection"

MAX_TOOLS = 128
"""Tools of one server: OpenAI accepts no more in a request, and models choose badly among many."""

MAX_NAME_CHARACTERS = 64
"""The longest name of a tool that all model providers accept."""

MAX_DESCRIPTION_CHARACTERS = 2_000
"""The length of a tool's description, and of each one in its schema: text from outside that is in
every request."""

MAX_SCHEMA_CHARACTERS = 32_000
"""The length of a tool's schema as JSON, about 8,000 tokens of every request."""

MAX_NAMED_TOOLS = 30
"""How many of the server's tools an error lists, to help correct the definition."""


class McpTools(Middleware, BaseToolset):
    """The tools of MCP servers.

    Args:
        servers: The servers, with unique names.
    """

    def __init__(self, servers: Sequence[McpServer]) -> None:
        super().__init__()
        self._servers = servers
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
        """Explain that the tools come from outside."""
        del context, tools
        prefixes = [f"{server.name}__" for server in self._servers if server.prefixed]
        return MCP.format(prefixes=", ".join(prefixes)) if prefixes else ""

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
                found = map(_tools_of, self._servers, connections, listed)
                made = [tool for tools in found for tool in tools]
            except BaseException:
                await asyncio.gather(*(connection.close() for connection in connections))
                raise
            self._connections, self._tools = connections, made


class McpTool(BaseTool):
    """One tool of a server.

    Args:
        name: The tool's name for the model.
        tool: The server's description of it.
        connection: The connection to the server.
        schema: The schema of its arguments for the model.
    """

    def __init__(
        self, name: str, tool: Tool, connection: McpConnection, schema: dict[str, Any]
    ) -> None:
        super().__init__(name=name, description=_cut(tool.description or tool.title or ""))
        self._remote_name = tool.name
        hints = tool.annotations
        self.only_looks = bool(hints and hints.read_only_hint)
        """Whether the server says that the tool changes nothing, so that it may be used to poll."""
        self._connection = connection
        self._schema = schema
        self._validator = _validator(tool.input_schema)

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name, description=self.description, parameters_json_schema=self._schema
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any]:
        """Call the tool; wrong arguments and failures of the server become error results."""
        del tool_context
        fault = best_match(self._validator.iter_errors(args))
        if fault is not None:
            where = fault.json_path.removeprefix("$.")
            return error_result(
                f"{self.name} was called with wrong arguments: {where}: {_cut(fault.message, 500)}"
            )
        try:
            return await self._connection.call(self._remote_name, args)
        except ToolMistake as mistake:
            return error_result(str(mistake))


def tool_name(server: str, tool: str) -> str:
    """Return a tool's name in the form that every model provider accepts.

    Args:
        server: The server's name, as the prefix; empty for none.
        tool: The server's name of the tool. A name that is too long is cut and ends with a hash.
    """
    whole = f"{server}__{tool}" if server else tool
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", whole)
    if len(name) <= MAX_NAME_CHARACTERS:
        return name
    mark = hashlib.sha256(whole.encode(errors="replace")).hexdigest()[:8]
    return f"{name[: MAX_NAME_CHARACTERS - 9]}_{mark}"


def _shown_name(server: McpServer, tool: str) -> str:
    return tool_name(server.name if server.prefixed else "", tool)


async def _all(opening: Iterable[Any]) -> list[Any]:
    """Return all results; if one fails, wait for the others too, so that none is left half open."""
    results = await asyncio.gather(*opening, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def _tools_of(
    server: McpServer, connection: McpConnection, offered: Sequence[Tool]
) -> list[McpTool]:
    by_name = {tool.name: tool for tool in offered}
    wanted = list(by_name) if server.tools is None else list(server.tools)
    missing = [name for name in wanted if name not in by_name]
    if missing:
        raise _not_started(
            server, f"it has no tool {', '.join(missing)}; it has {_some(by_name) or 'none'}"
        )
    names = {_shown_name(server, name) for name in wanted}
    if len(by_name) < len(offered) or len(names) < len(wanted):
        raise _not_started(server, "several of its tools have the same name")
    if len(wanted) > MAX_TOOLS:
        raise _not_started(
            server, f"it has {len(wanted)} tools, and at most {MAX_TOOLS} can be used; name some"
        )
    return [_tool(server, connection, by_name[name]) for name in wanted]


def _tool(server: McpServer, connection: McpConnection, tool: Tool) -> McpTool:
    if len(json.dumps(tool.input_schema)) > MAX_SCHEMA_CHARACTERS:
        most = MAX_SCHEMA_CHARACTERS
        raise _not_started(
            server, f"the schema of its tool {tool.name} has more than {most} characters"
        )
    try:
        _validator(tool.input_schema).check_schema(tool.input_schema)
        return McpTool(_shown_name(server, tool.name), tool, connection, _shown(tool.input_schema))
    except (SchemaError, RecursionError):
        raise _not_started(server, f"its tool {tool.name} has an invalid schema") from None


def _not_started(server: McpServer, reason: str) -> McpServerFailed:
    return McpServerFailed(f"mcp server {server.name} did not start: {reason}.")


def _some(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - MAX_NAMED_TOOLS} more" if len(found) > MAX_NAMED_TOOLS else ""
    return ", ".join(_cut(name, 100) for name in found[:MAX_NAMED_TOOLS]) + more


def _validator(schema: Mapping[str, Any]) -> Any:
    """Return the validator of a call's arguments.

    Patterns are not checked: one from outside could keep this process busy for ever. References to
    other documents are not followed.
    """
    kind = validator_for(schema, default=Draft202012Validator)
    harmless: Any = extend(kind, {"pattern": None, "patternProperties": None})  # type: ignore[no-untyped-call]
    return harmless(schema, registry=Registry())


def _shown(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema for the model, with its texts cut."""
    return {
        "type": "object",
        **{key: _bounded(value) for key, value in schema.items() if key != "$schema"},
    }


def _bounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _bounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_bounded(inner) for inner in value]
    return _cut(value) if isinstance(value, str) else value


def _cut(text: str, most: int = MAX_DESCRIPTION_CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
