"""The MCP server: its tools and resources, for any door."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError, ToolError
from mcp.types import CallToolResult, InputRequiredResult
from pydantic import AnyUrl

from fanout.orchestrator.jobs.failures import UnknownJob
from fanout.orchestrator.server.mcp.doors import Door
from fanout.orchestrator.server.mcp.failures import root_of, sentence
from fanout.orchestrator.server.mcp.tools import texts
from fanout.orchestrator.server.mcp.tools.approving import Approving
from fanout.orchestrator.server.mcp.tools.patches import Patches
from fanout.orchestrator.server.mcp.tools.reading import Reading
from fanout.orchestrator.server.mcp.tools.resources import Resources
from fanout.orchestrator.server.mcp.tools.submitting import Submitting
from fanout.orchestrator.server.mcp.tools.waiting import Waiting
from fanout.orchestrator.version import VERSION

NAME = "fanout"


class FanoutServer(MCPServer[Any]):
    """A server whose failures are one sentence each."""

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool.

        Raises:
            ToolError: It failed; the text is the sentence.
        """
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as failure:
            raise ToolError(sentence(failure, name)) from None

    async def read_resource(
        self, uri: AnyUrl | str, context: Context[Any, Any] | None = None
    ) -> Iterable[ReadResourceContents] | InputRequiredResult:
        """Read a resource.

        Raises:
            ResourceNotFoundError: There is no such job or resource.
            ResourceError: It could not be read; the text is the sentence.
        """
        try:
            return await super().read_resource(uri, context)
        except ResourceError as failure:
            root = root_of(failure)
            is_missing = isinstance(root, (UnknownJob, ResourceNotFoundError))
            kind = ResourceNotFoundError if is_missing else ResourceError
            raise kind(sentence(failure, "The resource")) from None


def create_server(door: Door) -> FanoutServer:
    """Return a server.

    Args:
        door: Where its tools find the caller's jobs.
    """
    server = FanoutServer(
        NAME,
        title="fanout",
        instructions=texts.INSTRUCTIONS + (texts.FOLDERS if door.is_local else texts.SNAPSHOTS),
        version=VERSION,
        subscriptions=False,
    )
    for part in (Submitting, Waiting, Reading, Patches, Approving, Resources):
        part(door).add_to(server)
    return server
