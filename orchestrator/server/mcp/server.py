"""The MCP server: its tools and resources, for any door."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, cast

from anyio import AsyncFile
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError, ToolError
from mcp.server.stdio import stdio_server
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
from fanout.orchestrator.valid_text import clean_json
from fanout.orchestrator.version import VERSION

NAME = "fanout"


class FanoutServer(MCPServer[Any]):
    """A server whose failures are one sentence each, and which takes text that no UTF-8 holds."""

    async def run_stdio_async(self) -> None:
        """Serve one client on stdin and stdout until it closes stdin."""
        lines = cast("AsyncFile[str]", AsyncFile(cast("Any", _ValidLines(_claim_stdin()))))
        async with stdio_server(stdin=lines) as (received, sent):
            server = self._lowlevel_server
            await server.run(received, sent, server.create_initialization_options())

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


class _ValidLines:
    """Lines of JSON with U+FFFD for what no text can hold.

    The SDK drops a message that has an escaped half of a surrogate pair, and its client waits for
    an answer for ever. Over HTTP, `ValidBodies` does the same.
    """

    def __init__(self, lines: BinaryIO) -> None:
        self._lines = lines

    def readline(self) -> str:
        """Return the next line; an empty text at the end."""
        return clean_json(self._lines.readline()).decode("utf-8", "replace")


def _claim_stdin() -> BinaryIO:
    """Return stdin, and leave nothing to read there for anything else of this process."""
    claimed = os.dup(0)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    return open(claimed, "rb", closefd=False)  # a thread may still read when the server ends


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
