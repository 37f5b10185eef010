"""Every built-in tool works beside every kind of tool and toolset that ADK takes.

ADK prepares a request in another way for toolsets and for tools that change it themselves, so the
harness's own tools are seen with another context there than among plain functions.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.artifacts import InMemoryArtifactService
from google.adk.memory import InMemoryMemoryService
from google.adk.models.llm_request import LlmRequest
from google.adk.tools import load_artifacts, load_memory, preload_memory
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.example_tool import ExampleTool
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.mcp_tool import McpToolset
from google.adk.tools.mcp_tool.mcp_session_manager import (
    StdioConnectionParams,
    StreamableHTTPConnectionParams,
)
from google.adk.tools.openapi_tool import OpenAPIToolset
from google.adk.tools.tool_context import ToolContext
from mcp import StdioServerParameters

from fanout.orchestrator.adk.task_toolset import TaskToolset
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.agent_definitions import load_agent_definitions
from fanout.orchestrator.configuration.settings import load_settings
from fanout.orchestrator.deep_agent import (
    FilesystemBackend,
    McpServer,
    McpTools,
    StateBackend,
)
from fanout.orchestrator.deep_agent.execution import server_process
from tests.built_in_tools import failed, one_call_each
from tests.integration.scripts import call
from tests.mcp_servers import STDIO_SERVER, http_server, url_of
from tests.unit.deep_agent.running import Run, scripted


async def shout(text: str) -> str:
    """Say it loud."""
    return text.upper()


async def much() -> str:
    """Return more than one result may take of a conversation."""
    return "x" * 100_000


class PlainToolset(BaseToolset):
    """Functions, of which the agent gets to know at each request."""

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        del readonly_context
        return [FunctionTool(shout)]

    async def close(self) -> None:
        """Close nothing."""


class ToolWithItsOwnRequest(BaseTool):
    """Changes each request, as ADK's own search tools do."""

    def __init__(self) -> None:
        super().__init__(name="own", description="Changes the request.")

    async def process_llm_request(
        self, *, tool_context: ToolContext, llm_request: LlmRequest
    ) -> None:
        llm_request.append_instructions([f"{len(tool_context.state.to_dict())} keys"])


def toolset_of_jobs(place: SimpleNamespace) -> TaskToolset:
    settings = load_settings(redis_url="redis://127.0.0.1:1/0", state_dir=place.folder / "state")
    client = JobClient(str(settings.redis_url), settings, load_agent_definitions(None))
    return TaskToolset(client, place.folder)


OPENAPI = """
openapi: 3.0.0
info: {title: clock, version: "1"}
servers: [{url: "http://127.0.0.1:9"}]
paths:
  /now:
    get: {operationId: now, description: The time., responses: {"200": {description: ok}}}
"""

KINDS: dict[str, Callable[[SimpleNamespace], Any]] = {
    "none": lambda _: shout,
    "a plain toolset": lambda _: PlainToolset(),
    "a prefixed toolset": lambda _: PlainToolset(tool_name_prefix="my"),
    "ADK's MCP toolset over HTTP": lambda place: McpToolset(
        connection_params=StreamableHTTPConnectionParams(url=place.url)
    ),
    "ADK's MCP toolset of a process": lambda place: McpToolset(
        connection_params=StdioConnectionParams(
            server_params=StdioServerParameters(command=sys.executable, args=[str(place.server)]),
            timeout=30,
        )
    ),
    "MCP over HTTP": lambda place: McpTools([McpServer(name="calc", url=place.url)]),
    "MCP of a process": lambda place: McpTools(
        [
            McpServer(
                name="files",
                open_process=lambda: server_process(sys.executable, (str(place.server),), {}),
            )
        ]
    ),
    "an OpenAPI toolset": lambda _: OpenAPIToolset(spec_str=OPENAPI, spec_str_type="yaml"),
    "jobs": toolset_of_jobs,
    "load_memory": lambda _: load_memory,
    "preload_memory": lambda _: preload_memory,
    "load_artifacts": lambda _: load_artifacts,
    "a tool with its own request": lambda _: ToolWithItsOwnRequest(),
    "examples": lambda _: ExampleTool(examples=[]),
    "a long-running function": lambda _: LongRunningFunctionTool(shout),
    "an agent as a tool": lambda _: AgentTool(LlmAgent(name="poet", model="gemini-2.5-flash")),
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with http_server() as server:
        yield url_of(server)


@pytest.fixture
def toolset_files(tmp_path: Path, url: str) -> SimpleNamespace:
    folder, server = tmp_path / "files", tmp_path / "server.py"
    folder.mkdir()
    server.write_text(STDIO_SERVER)
    return SimpleNamespace(folder=folder, server=server, url=url)


async def results_beside(tool: Any, root: str, **agent: Any) -> dict[str, dict[str, Any]]:
    """The result of each built-in tool of an agent that has this tool as well."""
    steps = {**one_call_each(root), "much": call("much")}
    replies: list[dict[str, Any]] = [*({"calls": [step]} for step in steps.values()), {"text": "x"}]
    run = Run(scripted(replies), tools=[tool, much], **agent)
    run.services = {
        "artifact_service": InMemoryArtifactService(),
        "memory_service": InMemoryMemoryService(),
    }
    try:
        await run.to_end()
    finally:
        if isinstance(tool, BaseToolset):
            await tool.close()
    assert run.text == "x"
    return dict(zip(steps, run.results, strict=True))


@pytest.mark.parametrize("kind", KINDS)
async def test_every_built_in_tool_works_beside(kind: str, toolset_files: SimpleNamespace) -> None:
    backend = FilesystemBackend(root_dir=str(toolset_files.folder))
    tool = await asyncio.to_thread(KINDS[kind], toolset_files)

    results = await results_beside(
        tool, str(toolset_files.folder), backend=backend, execution="local"
    )

    assert failed(results) == []


@pytest.mark.parametrize("kind", ["a plain toolset", "a tool with its own request"])
@pytest.mark.parametrize(
    "agent",
    [
        pytest.param({"execution": "local"}, id="files in the session's state"),
        pytest.param(
            {"execution": "local", "backend": StateBackend},
            id="files that are found for each call",
        ),
    ],
)
async def test_a_shell_beside_files_of_the_session_is_offered_too(
    kind: str, agent: dict[str, Any], toolset_files: SimpleNamespace
) -> None:
    tool = await asyncio.to_thread(KINDS[kind], toolset_files)

    assert failed(await results_beside(tool, "", **agent)) == []
