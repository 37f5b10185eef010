"""A service that runs: agents are read again, and models are those that its workers can ask."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from fanout.orchestrator.jobs.spec import ANYTHING
from tests.integration.scripts import conversation, says
from tests.served import ServerProcess, make_key
from tests.services import Installation, Installer

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]

AGENT = "name: {}\ndescription: {}\ninstruction: i\n"


@pytest.fixture
def place(install: Installer, monkeypatch: pytest.MonkeyPatch) -> Installation:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(name, raising=False)
    agents = {"old": AGENT.format("old", "before")}
    return install(conversation("", says("done")), agents=agents, workers=1)


async def test_new_agents_are_known_and_models_that_no_worker_can_ask_refused_at_each_door(
    place: Installation,
) -> None:
    agents = Path(place.environment["FANOUT_AGENTS_DIR"])
    async with place.client() as client:
        await place.ready(client)
    key = await make_key(place, "ann", policy=ANYTHING)
    process = ServerProcess(place)
    await asyncio.to_thread(process.start)
    try:
        async with process.client(key) as http:
            first = await http.get("/v1/agents")
            (agents / "new.yaml").write_text(AGENT.format("new", "made while it runs"))
            (agents / "old.yaml").write_text(AGENT.format("old", "edited while it runs"))
            accepted = await http.post("/v1/jobs", json={"description": "x", "agent": "new"})
            listed = await http.get("/v1/agents")
            refused = [
                await http.post(f"/v1/{path}", json={name: "x", "model": "gpt-5"})
                for path, name in (("jobs", "description"), ("runs", "goal"))
            ]
            transport = streamable_http_client(f"{process.url}/mcp", http_client=http)
            async with Client(transport) as mcp:
                tools = await mcp.call_tool("list_agents", {})
                asked = {"description": "x", "model": "gpt-5"}
                said = await mcp.call_tool("submit_job", asked)
    finally:
        await asyncio.to_thread(process.stop)

    described = {one["name"]: one["description"] for one in listed.json()["items"]}
    assert "new" not in {one["name"] for one in first.json()["items"]}
    assert accepted.status_code == 201, accepted.text
    assert (described["new"], described["old"]) == ("made while it runs", "edited while it runs")
    assert "made while it runs" in str(tools.structured_content)
    sentence = "No worker can ask this job's model: gpt-5 needs OPENAI_API_KEY in the environment."
    assert [(one.status_code, one.json()["detail"]) for one in refused] == [(422, sentence)] * 2
    assert said.is_error
    assert sentence in str(said.content[0].text)
