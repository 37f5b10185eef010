"""`/mcp` of `fanout serve`, driven by real MCP clients with keys of two owners."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from subprocess import PIPE, Popen
from typing import Any

import httpx2
import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.sessions import InMemorySessionService
from google.adk.tools import ToolContext
from google.adk.tools.mcp_tool import McpToolset, StreamableHTTPConnectionParams
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, ElicitRequestFormParams, ElicitResult

from tests.forked import REPOSITORY
from tests.integration.scripts import DONE, call, calls, conversation
from tests.integration.worker.approvals import agents_folder
from tests.services import Installation, Installer

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(120)]

SCRIPT = (
    conversation("one command", calls(call("execute", command="echo asked > out.txt")), DONE),
    conversation("quick", calls(call("ls", path="/workspace")), DONE),
)
NAMES = ("ann", "bob")
EVERYTHING = ["submit", "read", "approve"]


def key_of(name: str) -> str:
    return name * 12


@dataclass
class Served:
    """A service with a worker."""

    place: Installation
    url: str

    @asynccontextmanager
    async def client(self, name: str, **options: Any) -> AsyncIterator[Client]:
        headers = {"Authorization": f"Bearer {key_of(name)}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            transport = streamable_http_client(self.url + "/mcp", http_client=http)
            async with Client(transport, **options) as client:
                yield client


@pytest.fixture(scope="module")
def served(install_for_module: Installer) -> Iterator[Served]:
    agents = agents_folder(install_for_module.folder)
    keys = {name: {"key": key_of(name), "scopes": EVERYTHING} for name in NAMES}
    keys["eve"] = {"key": key_of("eve"), "scopes": ["submit", "read"]}
    made = install_for_module(
        *SCRIPT, FANOUT_AGENTS_DIR=str(agents), FANOUT_API__KEYS=json.dumps(keys)
    )
    made.start_worker(concurrency=2)
    command = [sys.executable, "-m", "fanout", "serve", "--port", "0"]
    with Popen(command, env=made.environment, cwd=REPOSITORY, stderr=PIPE, text=True) as server:
        assert server.stderr is not None
        line = next(line for line in server.stderr if "serves at" in line)
        yield Served(made, line.split()[-1])
        server.terminate()


def content_of(result: CallToolResult) -> dict[str, Any]:
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return result.structured_content


async def adk_context() -> ToolContext:
    sessions = InMemorySessionService()
    session = await sessions.create_session(app_name="caller", user_id="ann")
    return ToolContext(
        InvocationContext(
            session_service=sessions,
            invocation_id="1",
            agent=LlmAgent(name="caller"),
            session=session,
        )
    )


async def submitted(client: Client, **fields: Any) -> str:
    return str(content_of(await client.call_tool("submit_job", fields))["job_id"])


async def test_another_owners_job_does_not_exist_in_any_tool_or_resource(served: Served) -> None:
    missing = "0" * 26
    async with served.client("ann") as ann, served.client("bob") as bob:
        job_id = await submitted(ann, description="one command", agent="guarded")
        wait = {"job_id": job_id, "timeout_seconds": 45}
        (waiting,) = content_of(await ann.call_tool("wait_job", wait))["approvals"]

        for tool in ("get_job", "wait_job", "get_patch", "cancel_job"):
            refused = [await bob.call_tool(tool, {"job_id": one}) for one in (job_id, missing)]
            texts = [str(one.content[0].text).replace(job_id, missing) for one in refused]
            assert all(one.is_error for one in refused), tool
            assert texts[0] == texts[1]
        for what in ("logs", "result", "patch"):
            with pytest.raises(MCPError, match="no job"):
                await bob.read_resource(f"fanout://jobs/{job_id}/{what}")
        answer = {"approval_id": waiting["approval_id"], "decision": "approve"}
        assert (await bob.call_tool("respond_approval", answer)).is_error
        assert content_of(await bob.call_tool("list_jobs", {}))["jobs"] == []
        assert content_of(await bob.call_tool("list_approvals", {}))["approvals"] == []
        assert content_of(await ann.call_tool("get_job", {"job_id": job_id}))["approvals"]
        content_of(await ann.call_tool("cancel_job", {"job_id": job_id}))


async def test_a_server_that_keeps_nothing_asks_the_clients_user(served: Served) -> None:
    asked: list[str] = []

    async def approve(context: object, params: ElicitRequestFormParams) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"decision": "approve", "message": "yes"})

    async def refuse(context: object, params: ElicitRequestFormParams) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="decline")

    async with served.client("ann", elicitation_callback=refuse) as client:
        job_id = await submitted(client, description="one command", agent="guarded")
        wait = {"job_id": job_id, "timeout_seconds": 45}
        report = content_of(await client.call_tool("wait_job", wait))
        assert [one["tool"] for one in report["approvals"]] == ["execute"]
        assert len(asked) == 1
    async with served.client("ann", elicitation_callback=approve) as client:
        report = content_of(await client.call_tool("wait_job", wait))

    assert report["result"]["files_modified"] == ["added out.txt (+1 -0)"]
    assert len(asked) == 2


async def test_who_may_not_approve_is_not_asked(served: Served) -> None:
    async def approve(context: object, params: ElicitRequestFormParams) -> ElicitResult:
        raise AssertionError(params.message)

    async with served.client("eve", elicitation_callback=approve) as client:
        job_id = await submitted(client, description="one command", agent="guarded")
        wait = {"job_id": job_id, "timeout_seconds": 45}
        (waiting,) = content_of(await client.call_tool("wait_job", wait))["approvals"]
        answer = {"approval_id": waiting["approval_id"], "decision": "approve"}
        refused = await client.call_tool("respond_approval", answer)
        await client.call_tool("cancel_job", {"job_id": job_id})

    assert refused.is_error
    assert "needs the scope 'approve'" in refused.content[0].text


async def test_an_earlier_client_and_adks_toolset_wait_for_a_job(served: Served) -> None:
    async with served.client("ann", mode="legacy") as client:
        key = {"idempotency_key": "the same"}
        job_id = await submitted(client, description="quick", **key)
        assert await submitted(client, description="quick", **key) == job_id

    headers = {"Authorization": f"Bearer {key_of('ann')}"}
    parameters = StreamableHTTPConnectionParams(url=served.url + "/mcp", headers=headers)
    toolset = McpToolset(connection_params=parameters, tool_filter=["wait_job"])
    try:
        (wait,) = await toolset.get_tools()
        report = await wait.run_async(
            args={"job_id": job_id, "timeout_seconds": 45}, tool_context=await adk_context()
        )
    finally:
        await toolset.close()

    assert report["structuredContent"]["result"]["success"]
