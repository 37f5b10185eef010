"""`fanout mcp serve`, driven by a real MCP client: from a goal to changed files in the project."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult, ElicitRequestFormParams, ElicitResult

from tests.fixtures import place_fixture
from tests.integration.scripts import DONE, call, calls, conversation
from tests.integration.worker.approvals import SUPERVISED
from tests.services import Installation

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]

WRITES = calls(
    call("write_file", file_path="/workspace/notes.md", content="written\n"),
    call("write_file", file_path="/workspace/.envrc", content="echo code\n"),
)
SCRIPT = (
    conversation(
        "Have the notes written",
        calls(call("task", description="write the notes", subagent_type="general-purpose")),
        DONE,
    ),
    conversation("write the notes", WRITES, DONE),
    conversation("one command", calls(call("execute", command="echo asked > out.txt")), DONE),
)


place = place_fixture(*SCRIPT, scope="module", agents=SUPERVISED, workers=1)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "README.md").write_text("A project.\n")
    return folder


@asynccontextmanager
async def connected(place: Installation, project: Path, **options: Any) -> AsyncIterator[Client]:
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "fanout", "mcp", "serve"],
        env=place.environment,
        cwd=project,
    )
    async with Client(command, **options) as client:
        yield client


def content_of(result: CallToolResult) -> dict[str, Any]:
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return result.structured_content


async def ended(client: Client, job_id: str, **options: Any) -> dict[str, Any]:
    while True:
        arguments = {"job_id": job_id, "timeout_seconds": 45}
        report = content_of(await client.call_tool("wait_job", arguments, **options))
        if report["ended"]:
            return report


async def test_a_goal_becomes_changed_files_of_the_project(
    place: Installation, project: Path
) -> None:
    heard: list[str] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        heard.append(str(message))

    async with connected(place, project) as client:
        submitted = content_of(
            await client.call_tool("run", {"goal": "Have the notes written", "labels": {"a": "b"}})
        )
        job_id = submitted["job_id"]
        report = await ended(client, job_id, progress_callback=listen)
        listed = content_of(await client.call_tool("list_jobs", {"labels": {"a": "b"}}))
        patch = content_of(await client.call_tool("get_patch", {"job_id": job_id}))
        logs = await client.read_resource(report["links"]["logs"])
        applied = content_of(await client.call_tool("apply_patch", {"job_id": job_id}))

    assert report["result"]["success"]
    assert report["usage"]["model_calls"] == 4
    assert re.match(r"[12] (queued|running|waiting|succeeded)", heard[0])  # it may be quick
    assert [job["job_id"] for job in listed["jobs"]] == [job_id]
    assert "+written" in patch["patch"]
    assert patch["next_offset"] is None
    assert "job.state" in logs.contents[0].model_dump_json()
    assert (project / "notes.md").read_text() == "written\n"
    assert not (project / ".envrc").exists()
    assert ".envrc" in applied["held_back"][0]
    assert not applied["complete"]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_clients_user_is_asked_for_an_approval(
    place: Installation, project: Path, mode: str
) -> None:
    asked: list[str] = []

    async def approve(context: object, params: ElicitRequestFormParams) -> ElicitResult:
        asked.append(params.message)
        assert params.requested_schema["properties"]["decision"]["enum"] == ["approve", "reject"]
        return ElicitResult(action="accept", content={"decision": "approve", "message": "yes"})

    async with connected(place, project, mode=mode, elicitation_callback=approve) as client:
        submitted = content_of(
            await client.call_tool("submit_job", {"description": "one command", "agent": "guarded"})
        )
        report = await ended(client, submitted["job_id"])

    assert report["result"]["files_modified"] == ["added out.txt (+1 -0)"]
    assert len(asked) == 1
    assert "echo asked > out.txt" in asked[0]


async def test_without_a_form_the_report_names_the_call_and_a_tool_passes_on_the_decision(
    place: Installation, project: Path
) -> None:
    async with connected(place, project) as client:
        submitted = content_of(
            await client.call_tool("submit_job", {"description": "one command", "agent": "guarded"})
        )
        wait = {"job_id": submitted["job_id"], "timeout_seconds": 45}
        report = content_of(await client.call_tool("wait_job", wait))
        (waiting,) = report["approvals"]
        decision = {"approval_id": waiting["approval_id"], "decision": "reject"}
        content_of(await client.call_tool("respond_approval", decision))
        again = await client.call_tool("respond_approval", decision)
        report = await ended(client, submitted["job_id"])

    assert not report["result"]["files_modified"]
    assert again.is_error
    assert "answered already" in again.content[0].text


async def test_without_services_each_tool_says_how_they_are_started(
    place: Installation, project: Path
) -> None:
    environment = {**place.environment, "FANOUT_STATE_DIR": str(project.parent / "state")}
    del environment["FANOUT_REDIS_URL"]
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "fanout", "mcp", "serve"], env=environment, cwd=project
    )
    async with Client(command) as client:
        refused = await client.call_tool("run", {"goal": "anything"})

    assert refused.is_error
    assert [one.text for one in refused.content] == [
        "No Redis: set FANOUT_REDIS_URL, or start one here with `fanout up`."
    ]


async def test_half_a_character_in_a_request_costs_no_answer(
    place: Installation, project: Path
) -> None:
    """The replacement character is in its place, in the call and in whatever follows."""
    arguments = (
        r'{"description": "half \ud83d, whole \ud83d\ude00", "labels": {"a\udfff": "\ud800"}}'
    )
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    }
    requests = [
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}),
        '{"jsonrpc": "2.0", "method": "notifications/initialized"}',
        (
            '{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": '
            f'{{"name": "submit_job", "arguments": {arguments}}}}}'
        ),
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "fanout", "mcp", "serve"),
        env=place.environment,
        cwd=project,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write("\n".join([*requests, ""]).encode())
    submitted = (await _answer(process, 2))["structuredContent"]
    shows = {"name": "get_job", "arguments": {"job_id": submitted["job_id"]}}
    process.stdin.write(
        json.dumps({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": shows}).encode()
        + b"\n"
    )
    shown = (await _answer(process, 3))["structuredContent"]
    process.stdin.close()

    assert await process.wait() == 0
    assert "half \N{REPLACEMENT CHARACTER}, whole \N{GRINNING FACE}" in json.dumps(
        shown, ensure_ascii=False
    )


async def _answer(process: asyncio.subprocess.Process, request: int) -> dict[str, Any]:
    assert process.stdout is not None
    async for line in process.stdout:
        answer = json.loads(line)
        if answer.get("id") == request:
            result: dict[str, Any] = answer["result"]
            return result
    raise AssertionError("the server ended")
