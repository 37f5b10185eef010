"""What callers see of models that are not open, and of budgets: over HTTP, MCP and A2A."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import httpx2
import pytest
from a2a.client import ClientConfig, create_client
from a2a.types import GetTaskRequest, ListTasksRequest, TaskState
from google.protobuf.json_format import MessageToDict
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from fanout.orchestrator.cli.terminal.top_board import tables
from fanout.orchestrator.client.fleet_view import FleetView
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.keys import Keys
from tests.integration.a2a.conftest import message
from tests.integration.models.wires import Answer
from tests.quota_service import QuotaService, quota_service
from tests.served import ServerProcess, make_key
from tests.services import Installer
from tests.waits import eventually

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(180)]

MODEL = "gemini-2.5-flash"
WHY = f"model {MODEL}, which has no quota left (402); it is tried again at"
LIMITS = {"max_tokens": 500_000}


@dataclass
class Served:
    """A server and a worker whose model has a quota."""

    server: ServerProcess
    service: QuotaService
    keys: dict[str, str]

    def client(self, name: str) -> httpx2.AsyncClient:
        return self.server.client(self.keys[name])

    @asynccontextmanager
    async def mcp(self, name: str) -> AsyncIterator[Client]:
        async with self.client(name) as http:
            transport = streamable_http_client(self.server.url + "/mcp", http_client=http)
            async with Client(transport) as client:
                yield client

    @asynccontextmanager
    async def a2a(self, name: str) -> AsyncIterator[Any]:
        headers = {"Authorization": f"Bearer {self.keys[name]}"}
        async with httpx.AsyncClient(headers=headers, timeout=60) as http:
            yield await create_client(self.server.url, ClientConfig(httpx_client=http))


@pytest.fixture
def served(install: Installer) -> Iterator[Served]:
    with quota_service() as service:
        service.refusal = Answer(status=402, headers={"Retry-After": "3600"})
        place = install(workers=1, concurrency=4, **service.environment())
        keys = {
            "ann": asyncio.run(make_key(place, "ann")),
            "eve": asyncio.run(make_key(place, "eve", tenant="other")),
            "operator": asyncio.run(make_key(place, "operator", owner="*", tenant="*")),
        }
        process = ServerProcess(place)
        process.start()
        yield Served(process, service, keys)
        process.stop()


async def job_view(client: httpx2.AsyncClient, job_id: str) -> dict[str, Any]:
    answer = await client.get(f"/v1/jobs/{job_id}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def waiting_job(served: Served, client: httpx2.AsyncClient) -> str:
    """A job that waits for its model, which has no quota."""
    served.service.left[MODEL] = 0
    answer = await client.post("/v1/jobs", json={"description": "a", "limits": LIMITS})
    assert answer.status_code == 201, answer.text
    job_id = str(answer.json()["id"])
    await eventually(lambda: job_view(client, job_id), lambda one: one["waits_until"] is not None)
    return job_id


async def fleet(served: Served, name: str) -> FleetView:
    async with served.client(name) as client:
        return FleetView.model_validate((await client.get("/v1/fleet")).json())


async def test_who_waits_for_a_model_reads_why_and_until_when_and_nobody_else_does(
    served: Served,
) -> None:
    async with served.client("ann") as ann:
        job_id = await waiting_job(served, ann)
        job = await job_view(ann, job_id)
        [line] = (await ann.get("/v1/jobs")).json()["items"]
        texts = [(await ann.get(path)).text for path in ("/v1/jobs", f"/v1/jobs/{job_id}/logs")]
    async with served.client("eve") as eve:
        assert (await eve.get(f"/v1/jobs/{job_id}")).status_code == 404

    assert str(job["waiting_for"]).startswith(WHY)
    assert (line["waiting_for"], line["waits_until"]) == (job["waiting_for"], job["waits_until"])
    assert (job["budget"]["max_tokens"], job["budget"]["left_tokens"]) == (500_000, 500_000)

    views = {name: await fleet(served, name) for name in served.keys}
    [seen] = views["ann"].models or ()
    assert (seen.name, seen.state, seen.waiting) == (MODEL, "exhausted", 1)
    assert seen.until == job["waits_until"]
    assert not views["eve"].models
    assert views["operator"].models == views["ann"].models
    [row] = tables(views["operator"])["models"].rows
    assert row[:3] == [MODEL, "exhausted", "1"]

    place = served.server.installation
    keys = Keys(place.settings.redis_prefix)
    async with connect(place.environment["FANOUT_REDIS_URL"]) as redis:
        accesses = await redis.zrange(keys.models_closed, 0, -1)
    texts += [view.model_dump_json() for view in views.values()]
    assert accesses
    assert not [text for text in texts for access in accesses if access in text]


async def test_mcp_says_what_a_job_waits_for_and_what_is_left_of_its_budget(
    served: Served,
) -> None:
    async with served.client("ann") as ann:
        job_id = await waiting_job(served, ann)
        job = await job_view(ann, job_id)
    async with served.mcp("ann") as client:

        async def call(tool: str, **arguments: Any) -> dict[str, Any]:
            answer = await client.call_tool(tool, arguments)
            assert not answer.is_error, answer.content
            return dict(answer.structured_content or {})

        shown = await call("get_job", job_id=job_id)
        waited = await call("wait_job", job_id=job_id, timeout_seconds=0.5)
        [line] = (await call("list_jobs"))["jobs"]

    for one in (shown, waited, line):
        assert (one["waiting_for"], one["waits_until"]) == (
            job["waiting_for"],
            job["waits_until"],
        )
    for one in (shown, waited):
        assert f"1 job waits for {WHY}" in one["progress"]
        assert one["budget"]["left_tokens"] == 500_000
        assert "goes on by itself" in one["next"]


async def test_a2a_says_what_a_task_waits_for_while_it_waits(served: Served) -> None:
    served.service.left[MODEL] = 0
    served.service.refusal = Answer(status=402, headers={"Retry-After": "6"})
    async with served.a2a("ann") as client:
        asked = message("a", metadata={"fanout.limits": LIMITS})
        told: list[str] = []
        async for seen in client.send_message(asked):
            if seen.HasField("task"):
                task_id = seen.task.id
            elif seen.HasField("status_update"):
                status = seen.status_update.status
                told += [part.text for part in status.message.parts if "quota" in part.text]
                if told and served.service.left[MODEL] == 0:
                    task = await client.get_task(GetTaskRequest(id=task_id))
                    [listed] = (await client.list_tasks(ListTasksRequest())).tasks
                    served.service.left[MODEL] = 100
        ended = await client.get_task(GetTaskRequest(id=task_id))

    assert told[0].startswith(f"1 job waits for {WHY}")
    for one in (task, listed):
        assert one.status.state == TaskState.TASK_STATE_WORKING
        assert one.status.message.parts[0].text.startswith(f"1 job waits for {WHY}")
        facts = MessageToDict(one.status.message.metadata)
        assert (facts["fanout.waits_for_model"], facts["fanout.model_state"]) == (
            MODEL,
            "exhausted",
        )
        assert facts["fanout.waits_until"] > 0
    assert ended.status.state == TaskState.TASK_STATE_COMPLETED
    assert not ended.status.message.parts


async def test_what_is_reserved_of_a_budget_is_seen_while_a_model_call_is_in_progress(
    served: Served,
) -> None:
    served.service.answers_now.clear()
    async with served.client("ann") as ann:
        answer = await ann.post("/v1/jobs", json={"description": "a", "limits": LIMITS})
        job_id = answer.json()["id"]
        job = await eventually(
            lambda: job_view(ann, job_id),
            lambda one: one["budget"] and one["budget"]["reserved_tokens"],
        )
        async with served.a2a("ann") as client:
            task = await client.get_task(GetTaskRequest(id=job_id))
        views = [await fleet(served, name) for name in ("ann", "eve", "operator")]
        served.service.answers_now.set()
        ended = await eventually(
            lambda: job_view(ann, job_id), lambda one: one["state"] == "succeeded"
        )

    budget = job["budget"]
    assert budget["left_tokens"] == budget["max_tokens"] - budget["reserved_tokens"]
    in_task = MessageToDict(task.metadata)["fanout.budget"]
    assert in_task["reserved_tokens"] == budget["reserved_tokens"]
    assert [[one.root_id for one in view.budgets] for view in views] == [[job_id], [], [job_id]]
    [row] = tables(views[0])["budgets"].rows
    reserved, left = (f"{budget[name]:,}" for name in ("reserved_tokens", "left_tokens"))
    assert row[1:] == ["max_tokens=500,000", "0", reserved, left]
    assert ended["budget"]["reserved_tokens"] == 0
    assert ended["budget"]["left_tokens"] < 500_000
