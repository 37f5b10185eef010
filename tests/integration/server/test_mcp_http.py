"""`/mcp` of `fanout serve`, driven by real MCP clients with keys of two owners."""

from __future__ import annotations

import asyncio
import io
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

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

from tests.integration.scripts import DONE, call, calls, conversation
from tests.integration.worker.approvals import SUPERVISED
from tests.served import ServerProcess, make_key
from tests.services import Installer

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]

EDIT = call("edit_file", file_path="/workspace/a.txt", old_string="one", new_string="two")
SCRIPT = (
    conversation("one command", calls(call("execute", command="echo asked > out.txt")), DONE),
    conversation("edit", calls(EDIT), DONE),
    conversation("quick", calls(call("ls", path="/workspace")), DONE),
)


@dataclass
class Served:
    """A service with a worker."""

    process: ServerProcess
    keys: dict[str, str]

    @asynccontextmanager
    async def client(self, name: str, **options: Any) -> AsyncIterator[Client]:
        async with self.process.client(self.keys[name]) as http:
            transport = streamable_http_client(self.process.url + "/mcp", http_client=http)
            async with Client(transport, **options) as client:
                yield client


@pytest.fixture(scope="module")
def served(install_for_module: Installer) -> Iterator[Served]:
    place = install_for_module(*SCRIPT, agents=SUPERVISED, workers=1, concurrency=2)
    names = ("ann", "bob")
    keys = {name: asyncio.run(make_key(place, name)) for name in names}
    keys["eve"] = asyncio.run(make_key(place, "eve", "submit", "read"))
    process = ServerProcess(place)
    process.start()
    yield Served(process, keys)
    process.stop()


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
    async with (
        served.client("ann") as ann,
        served.client("bob") as bob,
        served.client("eve") as eve,
    ):
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
        forged = {waiting["approval_id"]: ElicitResult(action="accept", content=answer)}
        for spy in (bob, eve):
            own = {"job_id": await submitted(spy, description="quick"), "timeout_seconds": 45}
            assert (await spy.call_tool("wait_job", own, input_responses=forged)).is_error
            await spy.call_tool("wait_job", own)
        assert len(content_of(await bob.call_tool("list_jobs", {}))["jobs"]) == 1
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


async def test_a_decision_that_the_model_passes_on_is_confirmed_by_its_user(
    served: Served,
) -> None:
    asked: list[str] = []
    words: list[bool] = [False, True]

    async def confirm(context: object, params: ElicitRequestFormParams) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"confirm": words.pop(0)})

    async with (
        served.client("ann") as ann,
        served.client("ann", elicitation_callback=confirm) as asking,
    ):
        job_id = await submitted(ann, description="one command", agent="guarded")
        wait = {"job_id": job_id, "timeout_seconds": 45}
        (waiting,) = content_of(await ann.call_tool("wait_job", wait))["approvals"]
        answer = {"approval_id": waiting["approval_id"], "decision": "approve"}
        refused = await asking.call_tool("respond_approval", answer)
        accepted = content_of(await asking.call_tool("respond_approval", answer))
        report = content_of(await ann.call_tool("wait_job", wait))

    assert refused.is_error
    assert "did not confirm" in refused.content[0].text
    assert accepted["job_id"] == job_id
    assert report["result"]["success"]
    assert len(asked) == 2
    assert '"decision": "approve"' in asked[0]


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

    headers = {"Authorization": f"Bearer {served.keys['ann']}"}
    url = served.process.url + "/mcp"
    parameters = StreamableHTTPConnectionParams(url=url, headers=headers)
    toolset = McpToolset(connection_params=parameters, tool_filter=["wait_job"])
    try:
        (wait,) = await toolset.get_tools()
        report = await wait.run_async(
            args={"job_id": job_id, "timeout_seconds": 45}, tool_context=await adk_context()
        )
    finally:
        await toolset.close()

    assert report["structuredContent"]["result"]["success"]


async def test_an_uploaded_workspace_becomes_a_patch_in_parts(served: Served) -> None:
    heard: list[str] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        heard.append(str(message))

    lines = "".join(f"line {number}\n" for number in range(300))
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("a.txt", f"one\n{lines}")
    async with served.process.client(served.keys["ann"]) as http:
        answer = await http.post("/v1/snapshots", content=sink.getvalue())
    snapshot = answer.json()["snapshot"]

    async with served.client("ann") as ann, served.client("bob") as bob:
        task = {"description": "edit", "workspace": snapshot, "idempotency_key": "once"}
        job_id = await submitted(ann, **task)
        assert await submitted(ann, **task) == job_id
        stolen = await bob.call_tool("submit_job", task)
        wait = {"job_id": job_id, "timeout_seconds": 45}
        report = content_of(await ann.call_tool("wait_job", wait, progress_callback=listen))
        patch = content_of(await ann.call_tool("get_patch", {"job_id": job_id}))
        whole = await ann.read_resource(f"fanout://jobs/{job_id}/patch")
        refused = await ann.call_tool(
            "run", {"goal": "x", "workspace": "https://127.0.0.1/team/project.git#main"}
        )
        tools = {tool.name for tool in (await ann.list_tools()).tools}

    assert report["result"]["files_modified"] == ["modified a.txt (+1 -1)"]
    assert heard
    assert "+two" in patch["patch"]
    assert patch["is_exact"]
    assert whole.contents[0].model_dump()["text"] == patch["patch"]
    assert stolen.is_error
    assert "There is no snapshot" in stolen.content[0].text
    assert refused.is_error
    assert "host of the repository is not on the public internet" in refused.content[0].text
    assert "apply_patch" not in tools
