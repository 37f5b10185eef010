"""The MCP servers of a job's agent: reached by a URL from the worker, or run inside its sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fanout.orchestrator.configuration.agent_definitions import McpServerDefinition
from fanout.orchestrator.deep_agent import McpServer, McpTools
from fanout.orchestrator.delegation.agents import remote_mcp_server
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.workers.agent.session_journal import LINE_CHARACTERS, AttemptJournal
from fanout.workers.sandbox import Command, Sandbox

ERROR_OUTPUT_BYTES = 16_384
"""How much of a server's error output is kept for the text of an error: a long traceback."""


def mcp_tools(
    servers: Sequence[McpServerDefinition], sandbox: Sandbox, journal: AttemptJournal
) -> list[McpTools]:
    """Return the tools of these servers; an empty list for no servers.

    Args:
        servers: The servers of the agent's definition.
        sandbox: The job's sandbox, in which a server with a command is started.
        journal: Gets a `log` event for each tool that is left out.

    Raises:
        InvalidJob: A header needs a variable that is not set.
    """
    opened = [
        _in_sandbox(server, sandbox) if server.command else remote_mcp_server(server)
        for server in servers
    ]

    async def report(text: str) -> None:
        await journal.note(EventType.LOG, {"stream": "mcp", "text": text}, text[:LINE_CHARACTERS])

    return [McpTools(opened, report)] if opened else []


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
