"""The MCP servers of a job's agent.

Those at a URL from here, those with a command inside its sandbox.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from orchestrator.configuration.mcp_servers import McpServerDefinition
from orchestrator.deep_agent import McpServer, McpTools, remote_server
from workers.sandbox.protocol import Command, Sandbox

ERROR_OUTPUT_BYTES = 16_384
"""What is kept of a server's error output, for the text of an error: a long traceback."""


def mcp_tools(
    servers: Sequence[McpServerDefinition], sandbox: Sandbox, environment: Mapping[str, str]
) -> list[McpTools]:
    """The tools of these servers; empty for no servers.

    Raises:
        ValueError: a header needs a variable that this environment does not have.
    """
    made = [
        _in_sandbox(server, sandbox) if server.command else remote_server(server, environment)
        for server in servers
    ]
    return [McpTools(made)] if made else []


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
