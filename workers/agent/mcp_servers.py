"""The MCP servers of a job's agent: reached by a URL from the worker, or run inside its sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from orchestrator.configuration.mcp_servers import McpServerDefinition
from orchestrator.deep_agent import McpServer, McpTools
from orchestrator.delegation.agents import remote_mcp_server
from workers.sandbox import Command, Sandbox

ERROR_OUTPUT_BYTES = 16_384
"""What is kept of a server's error output, for the text of an error: a long traceback."""


def mcp_tools(servers: Sequence[McpServerDefinition], sandbox: Sandbox) -> list[McpTools]:
    """Return the tools of these servers; an empty list for no servers.

    Raises:
        InvalidJob: a header needs a variable that this process's environment does not have.
    """
    opened = [
        _in_sandbox(server, sandbox) if server.command else remote_mcp_server(server)
        for server in servers
    ]
    return [McpTools(opened)] if opened else []


def _in_sandbox(server: McpServerDefinition, sandbox: Sandbox) -> McpServer:
    command = Command(
        argv=server.command or (), env=server.env, max_output_bytes=ERROR_OUTPUT_BYTES
    )
    return McpServer(
        name=server.name,
        open_process=partial(sandbox.open_process, command),
        tools=server.tools,
        timeout_seconds=server.timeout_seconds,
    )
