"""Scripts over the service: started over HTTP and MCP, refused with their lines, and looked at."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from fanout.orchestrator.scripts.program import MAX_SCRIPT_BYTES
from tests.fixtures import place_fixture
from tests.integration.scripts import call, calls, conversation, says
from tests.served import ServerProcess, make_key
from tests.services import Installation

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(180)]

SOURCE = '''
"""Greet people."""
import asyncio

async def main():
    phase("Greet")
    found = await asyncio.gather(*[agent(f"greet {name}", label=name) for name in inputs["names"]])
    log(f"{len(found)} greeted")
    return [one.summary for one in found]
'''
INPUTS = {"names": ["Ann", "Bob"]}

place = place_fixture(
    conversation(r"^greet (\w+)", says("## Summary\nHello {{1}}.")),
    conversation("", calls(call("ls", path="/workspace")), says("done")),
    workers=1,
)


async def ended(client: httpx2.AsyncClient, run_id: str) -> dict[str, Any]:
    return (await client.get(f"/v1/runs/{run_id}?wait=50")).json()


async def test_a_script_is_started_over_http_and_says_how_it_stands(
    place: Installation, server: ServerProcess
) -> None:
    async with server.client(await make_key(place, "ann")) as ann:
        body = {"script": SOURCE, "inputs": INPUTS}
        key = {"Idempotency-Key": "once"}
        begun = await ann.post("/v1/runs", json=body, headers=key)
        assert begun.status_code == 201, begun.text
        run_id = begun.json()["id"]
        other = await ann.post("/v1/runs", json={**body, "inputs": {"names": []}}, headers=key)
        assert other.status_code == 409
        run = await ended(ann, run_id)
        assert (run["state"], run["description"]) == ("succeeded", "Greet people."), run
        assert run["result"]["output"] == ["Hello Ann.", "Hello Bob."]

        progress = (await ann.get(f"/v1/jobs/{run_id}/script")).json()
        greet = {"name": "Greet", "asked": 2, "answered": 2, "failed": 0, "waiting": 0}
        assert progress["phases"] == [{**greet, "reused": 0}]
        assert progress["log"] == ["2 greeted"]
        assert (progress["end"]["asked"], progress["end"]["never_run"]) == (2, 0)

        goal = await ann.post("/v1/runs", json={"goal": "look"})
        refused = await ann.get(f"/v1/jobs/{goal.json()['id']}/script")
        assert refused.status_code == 404
        assert "no script" in refused.json()["detail"]
    async with server.client(await make_key(place, "eve")) as eve:
        assert (await eve.get(f"/v1/jobs/{run_id}/script")).status_code == 404


async def test_a_caller_reuses_what_its_own_scripts_have_run_and_nobody_elses(
    place: Installation, server: ServerProcess
) -> None:
    body = {"script": SOURCE, "inputs": {"names": ["Cleo", "Dan"]}}
    keys = {name: await make_key(place, name) for name in ("cleo", "dan")}
    reused = []
    for name, wanted in (("cleo", False), ("cleo", True), ("dan", True)):
        async with server.client(keys[name]) as client:
            begun = await client.post("/v1/runs", json={**body, "reuse": wanted})
            run = await ended(client, begun.json()["id"])
            assert run["result"]["output"] == ["Hello Cleo.", "Hello Dan."]
            progress = (await client.get(f"/v1/jobs/{run['id']}/script")).json()
            (phase,) = progress["phases"]
            reused.append((phase["reused"], progress["end"]["reused"], sum(run["jobs"].values())))

    assert reused == [(0, 0, 3), (2, 2, 1), (0, 0, 3)]


async def test_a_script_that_cannot_run_is_refused_with_its_lines(
    place: Installation, server: ServerProcess
) -> None:
    async with server.client(await make_key(place, "ann")) as ann:

        async def refusal(**body: Any) -> tuple[int, str]:
            answer = await ann.post("/v1/runs", json=body)
            return answer.status_code, str(answer.json()["detail"])

        status, detail = await refusal(script='x = 1\nawait agent("a", agent="nobody")\n')
        assert (status, "line 2" in detail, "nobody" in detail) == (422, True, True), detail
        status, detail = await refusal(script="#" * (MAX_SCRIPT_BYTES + 1))
        assert status == 422
        assert (await refusal(goal="x", inputs={"a": 1}))[0] == 422
        assert (await refusal(goal="x", reuse=True))[0] == 422
        assert (await refusal())[0] == 422
        status, detail = await refusal(script='await agent("a")', model="gemini-9-ultra")
        assert status == 403, detail
        for source in ('await run("ls")', 'await agent("greet Ann", verify="ls")'):
            begun = await ann.post("/v1/runs", json={"script": source})
            result = (await ended(ann, begun.json()["id"]))["result"]
            assert "This caller may not choose the command" in result["error"]["message"]
    async with server.client(await make_key(place, "eve", "read")) as eve:
        assert (await eve.post("/v1/runs", json={"script": '"x"'})).status_code == 403


async def test_a_script_is_started_over_mcp(place: Installation, server: ServerProcess) -> None:
    async with server.client(await make_key(place, "ann")) as http:
        transport = streamable_http_client(server.url + "/mcp", http_client=http)
        async with Client(transport) as client:
            given = {"script": SOURCE, "inputs": INPUTS}
            begun = await client.call_tool("run_script", given)
            assert not begun.is_error, begun.content
            job_id = (begun.structured_content or {})["job_id"]
            wrong = await client.call_tool("run_script", {"script": "await agent()"})
            assert wrong.is_error
            assert "line 1" in str(wrong.content)
            assert (await ended(http, job_id))["result"]["output"] == ["Hello Ann.", "Hello Bob."]
            again = await client.call_tool("run_script", {**given, "reuse": True})
            job_id = (again.structured_content or {})["job_id"]
        run = await ended(http, job_id)
        assert run["result"]["output"] == ["Hello Ann.", "Hello Bob."]
        assert run["jobs"] == {"succeeded": 1}
