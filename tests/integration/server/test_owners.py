"""Another owner's job does not exist: every route answers as to an id that never was."""

from __future__ import annotations

import re
from typing import Any

import httpx2
import pytest

from tests.fixtures import place_fixture
from tests.integration.scripts import call, calls, conversation, says
from tests.served import ServerProcess, make_key
from tests.services import Installation
from tests.waits import eventually

pytestmark = [pytest.mark.redis, pytest.mark.slow]

NEVER = "01zzzzzzzzzzzzzzzzzzzzzzzz"
NO_APPROVAL = "ap_00000000000000000000"
BODIES: dict[str, Any] = {
    ":tell": {"text": "hello"},
    "/approvals/": {"decision": "approve"},
    "/webhooks": {"url": "https://example.com/", "secret": "whsec_" + "A" * 32},
}
QUERIES = {"/files/patch": {"path": "a.txt"}}
SCRIPT = conversation(
    "", calls(call("write_file", file_path="/workspace/a.txt", content="hi")), says("done")
)


place = place_fixture(SCRIPT, workers=1)


def masked(response: httpx2.Response, *ids: str) -> tuple[int, str]:
    """What an answer says, without what differs between any two requests."""
    text = response.text
    for one in ids:
        text = text.replace(one, "ID")
    return response.status_code, re.sub(r'"(request_id|instance)":"[^"]*"', "", text)


async def waiting_job(ann: httpx2.AsyncClient) -> tuple[str, str]:
    """A job that waits for an approval, and the approval."""
    body = {"description": "write", "interrupt_on": {"write_file": True}}
    job_id = (await ann.post("/v1/jobs", json=body)).json()["id"]
    listed = await eventually(
        lambda: ann.get("/v1/approvals"), lambda listed: listed.json()["items"]
    )
    return job_id, listed.json()["items"][0]["id"]


async def routes(ann: httpx2.AsyncClient) -> list[tuple[str, str]]:
    """All operations of the service on one job, run or approval."""
    paths = (await ann.get("/openapi.json")).json()["paths"]
    return [
        (method.upper(), path)
        for path, operations in paths.items()
        for method in operations
        if "{" in path and "{name}" not in path
    ]


async def test_another_owners_job_and_approval_do_not_exist_in_any_operation(
    place: Installation, server: ServerProcess
):
    ann = server.client(await make_key(place, "ann"))
    bob = server.client(await make_key(place, "bob"))
    other_tenant = server.client(await make_key(place, "ann2", owner="ann", tenant="other"))
    async with ann, bob, other_tenant:
        job_id, approval_id = await waiting_job(ann)
        operations = await routes(ann)
        differing = []
        for stranger in (bob, other_tenant):
            for method, path in operations:
                body = next((one for part, one in BODIES.items() if part in path), None)
                query = next((one for part, one in QUERIES.items() if part in path), None)
                answers = [
                    masked(
                        await stranger.request(
                            method, re.sub(r"\{[^}]*\}", wanted, path), json=body, params=query
                        ),
                        wanted,
                    )
                    for wanted in (
                        (approval_id, NO_APPROVAL) if "approval" in path else (job_id, NEVER)
                    )
                ]
                if answers[0] != answers[1] or answers[0][0] != 404:
                    differing.append((method, path, answers))
            lists = [(await stranger.get(path)).json() for path in ("/v1/jobs", "/v1/approvals")]
            assert [one["items"] for one in lists] == [[], []]
        unchanged = (await ann.get(f"/v1/jobs/{job_id}")).json()
        seen = await ann.get(f"/v1/jobs/{job_id}/tree")

    assert differing == []
    assert len(operations) > 8
    assert unchanged["state"] == "waiting"
    assert [one["owner"] for one in seen.json()["items"]] == ["ann"]


async def test_an_answer_records_whose_decision_it_was_and_the_owner_of_all_sees_everything(
    place: Installation, server: ServerProcess
):
    ann = server.client(await make_key(place, "ann"))
    reader = server.client(await make_key(place, "reader", "read", owner="ann"))
    everybody = server.client(await make_key(place, "ops", owner="*"))
    async with ann, reader, everybody:
        job_id, approval_id = await waiting_job(ann)
        refused = [
            await reader.post(f"/v1/approvals/{approval_id}", json={"decision": "approve"}),
            await reader.post(f"/v1/jobs/{job_id}:cancel"),
            await reader.post("/v1/jobs", json={"description": "x"}),
        ]
        listed = (await everybody.get("/v1/jobs")).json()["items"]
        answered = await everybody.post(
            f"/v1/approvals/{approval_id}", json={"decision": "approve", "message": "fine"}
        )
        again = await ann.post(f"/v1/approvals/{approval_id}", json={"decision": "reject"})
        ended = (await ann.get(f"/v1/jobs/{job_id}?wait=30")).json()
        journal = (await ann.get(f"/v1/jobs/{job_id}/logs?limit=500")).json()["items"]

    resolved = [one["data"] for one in journal if one["type"] == "approval.resolved"]
    assert [one.status_code for one in refused] == [403, 403, 403]
    assert [one["id"] for one in listed] == [job_id]
    assert (answered.status_code, again.status_code) == (200, 409)
    assert ended["result"]["success"]
    assert [one["person"] for one in resolved] == ["ops"]


async def test_a_job_comes_after_jobs_of_its_list_and_of_its_owner_and_of_nobody_else(
    place: Installation, server: ServerProcess
):
    ann = server.client(await make_key(place, "ann"))
    bob = server.client(await make_key(place, "bob"))
    graph = [
        {"description": "second", "after": ["first"]},
        {"description": "first", "name": "first"},
    ]
    async with ann, bob:
        ids = (await ann.post("/v1/jobs", json=graph)).json()["job_ids"]
        alone = await ann.post("/v1/jobs", json={"description": "third", "after": [ids[0]]})
        third = await ann.get(f"/v1/jobs/{alone.json()['id']}", params={"wait": 60})
        stolen = [
            await bob.post("/v1/jobs", json={"description": "x", "after": [one]})
            for one in (ids[0], NEVER)
        ]
        circle = [{**one, "after": ["first"]} for one in graph]
        refused = await ann.post("/v1/jobs", json=circle)
        tree = (await ann.get(f"/v1/jobs/{ids[0]}/tree")).json()["items"]

    assert third.json()["state"] == "succeeded"
    assert {one["id"]: one["name"] for one in tree} == {ids[0]: None, ids[1]: "first"}
    assert masked(stolen[0], ids[0]) == masked(stolen[1], NEVER)
    assert (stolen[0].status_code, refused.status_code) == (422, 422)
    assert "Job 2 of the list: after: it would wait for itself (first → first)" in refused.text
