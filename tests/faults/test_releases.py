"""This release and earlier ones side by side: up, back, and in any order, nothing is lost.

Real workers, servers and clients of each release share a Redis, a queue and a state folder.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.spec import ANYTHING
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.faults.releases import THIS_RELEASE, Release, earlier_release, listed_releases
from tests.integration.scripts import DONE, conversation, shell
from tests.integration.worker.children import children_of, delegates, delegating_agents, until
from tests.served import ServerProcess, make_key
from tests.services import Installation, Installer, WorkerProcess

pytestmark = [pytest.mark.redis, pytest.mark.timeout(600)]

LISTED = {
    f"wire-{listed['wire']}-layout-{listed['layout']}": listed for listed in listed_releases()
}
SCRIPT = (
    conversation(
        "parent",
        shell("echo mine > mine.txt"),
        delegates("slow one", "slow two", "slow three"),
        DONE,
    ),
    conversation("slow", shell("sleep 1; echo made > made.txt"), DONE),
    conversation("short", shell("echo made > made.txt"), DONE),
    conversation("long", shell("seq -f 'line %g of many' 400"), shell("sleep 600"), DONE),
)
CHILDREN = 3
SHORT_JOBS = 6
SLOTS = 3
"""Of a worker: fewer than the jobs that are submitted at once, so that most are queued."""


ON_A_LEDGER = """
import asyncio, os
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger
from fanout.orchestrator.jobs.worker_info import WorkerInfo

WORKER = WorkerInfo("w", "h", 4, 0, "local")

async def submitted(ledger):
    await ledger.register(WORKER, 60)
    await ledger.submit([JobSpec(id="stuck", description="short")])
    await ledger.dispatch(1)

async def claimed(ledger):
    print(await ledger.claim("stuck", WORKER, 60))
    await ledger.register(WORKER, 0)

async def main():
    async with connect(os.environ["FANOUT_REDIS_URL"]) as redis:
        ledger = Ledger(redis, Keys())
        await {}

asyncio.run(main())
"""
"""A job is written in the second layout and taken by a worker of the first: with processes of both,
either might dispatch it."""


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Release]:
    folder = tmp_path_factory.mktemp("releases")
    try:
        return {name: earlier_release(listed, folder) for name, listed in LISTED.items()}
    except LookupError as error:
        pytest.fail(str(error), pytrace=False)  # skipped, it would look as if releases agreed


@pytest.fixture(params=sorted(LISTED))
def earlier(request: pytest.FixtureRequest, releases: dict[str, Release]) -> Release:
    return releases[str(request.param)]


@pytest.fixture
def place(install: Installer) -> Installation:
    return install(
        *SCRIPT,
        FANOUT_AGENTS_DIR=str(delegating_agents(install.folder)),
        FANOUT_WORKER__SHUTDOWN_GRACE_SECONDS="1",
    )


@pytest.fixture
async def client(place: Installation) -> AsyncIterator[JobClient]:
    async with place.client() as client:
        yield client


def load(kind: str) -> list[dict[str, Any]]:
    """Jobs of one submission: a parent first, so that it waits while others are queued."""
    parent = {"description": f"parent {kind}", "agent": "lead"}
    return [parent, *({"description": f"short {kind} {n}"} for n in range(SHORT_JOBS))]


async def submit_here(client: JobClient, kind: str) -> list[str]:
    return await client.submit_many([(make_spec(**job), None) for job in load(kind)])


async def submit_by_command(release: Release, place: Installation, kind: str) -> list[str]:
    file = place.folder / f"{kind}.jsonl"
    file.write_text("".join(json.dumps(job) + "\n" for job in load(kind)))
    said = await release.command(place, "submit", "--file", str(file))
    return [str(job_id) for job_id in said["job_ids"]]


async def submit_over_http(server: ServerProcess, key: str, kind: str) -> list[str]:
    async with server.client(key) as http:
        answer = await http.post("/v1/jobs", json=load(kind))
    assert answer.status_code == 201, answer.text
    return [str(job_id) for job_id in answer.json()["job_ids"]]


async def stop(process: WorkerProcess | ServerProcess) -> None:
    await asyncio.to_thread(process.stop)


async def start_worker(
    release: Release, place: Installation, client: JobClient, others: int = 0
) -> WorkerProcess:
    worker = await asyncio.to_thread(release.start_worker, place, SLOTS)
    await place.ready(client, 1 + others)
    return worker


async def ran_children(client: JobClient, parent: str) -> set[str]:
    """The numbers of the processes that claimed a job's children."""
    return {
        str(event.data["worker"]).rpartition("-")[2]
        for record in await children_of(client, parent)
        async for event in client.events(record.id, follow=False)
        if "worker" in event.data
    }


def number_of(worker: WorkerProcess) -> str:
    assert worker.process is not None
    return str(worker.process.pid)


async def ended(client: JobClient, ids: Sequence[str]) -> None:
    """Wait for all jobs: they and their children have succeeded, once, in their first attempt."""
    for job_id in ids:
        await client.wait(job_id, 90)
        children = await children_of(client, job_id)
        is_parent = (await client.get(job_id)).description.startswith("parent")
        assert len(children) == CHILDREN * is_parent, job_id
        for each in (job_id, *(child.id for child in children)):
            result = await client.result(each)
            assert result is not None
            assert (result.state, result.attempts, result.error) == (JobState.SUCCEEDED, 1, None)
            events = [event async for event in client.events(each, follow=False)]
            assert sum(event.ends_job for event in events) == 1, each


@asynccontextmanager
async def serving(release: Release, place: Installation) -> AsyncIterator[ServerProcess]:
    server = release.server(place)
    await asyncio.to_thread(server.start)
    try:
        yield server
    finally:
        await stop(server)


async def test_workers_first_then_servers_and_clients_and_back_under_load(
    place: Installation, client: JobClient, earlier: Release
) -> None:
    old = await start_worker(earlier, place, client)
    key = await make_key(place, "ann", policy=ANYTHING)  # as keys of earlier releases
    async with serving(earlier, place) as old_server:
        ids = await submit_by_command(earlier, place, "old command, old worker")
        new = await start_worker(THIS_RELEASE, place, client, others=1)
        ids += await submit_here(client, "new client, both workers")
        await stop(old)  # its jobs continue elsewhere, parents and children, running and queued
        ids += await submit_over_http(old_server, key, "old server, new worker")
        await ended(client, ids)

        async with serving(THIS_RELEASE, place) as new_server:
            back = await submit_over_http(new_server, key, "new server, new worker")
            await until(client, back[0], JobState.WAITING)
            await stop(new)  # none of this release is left, and its parent waits
            old = await start_worker(earlier, place, client)
            back += await submit_over_http(new_server, key, "new server, old worker")
        back += await submit_here(client, "new client, old worker")
        await ended(client, back)
        assert number_of(old) in await ran_children(client, back[0])

        await earlier.command(place, "wait", *ids, *back)
        async with old_server.client(key) as http:
            listed = await http.get("/v1/jobs", params={"limit": 100})
        assert listed.status_code == 200, listed.text
        assert {job["state"] for job in listed.json()["items"]} == {JobState.SUCCEEDED}


async def test_a_job_with_long_outputs_waits_for_this_release_and_an_earlier_one_shows_it(
    place: Installation, client: JobClient, earlier: Release
) -> None:
    new = await start_worker(THIS_RELEASE, place, client)
    key = await make_key(place, "ann", policy=ANYTHING)
    job_id = await client.submit(make_spec("long", owner="ann"))
    async for event in client.events(job_id):
        if event.type is EventType.TOOL_CALL and "sleep" in str(event.data):
            break
    new.kill()
    place.workers.remove(new)
    await asyncio.to_thread(earlier.start_worker, place, SLOTS)

    async with serving(earlier, place) as server, server.client(key) as http:
        record: dict[str, Any] = {}
        async with asyncio.timeout(120):
            while "version 3" not in str(record.get("waiting_for")):
                await asyncio.sleep(0.5)
                record = (await http.get(f"/v1/jobs/{job_id}")).json()
        shown = await http.get(f"/v1/jobs/{job_id}/logs")
    assert shown.status_code == 200, shown.text
    results = [one["data"]["results"] for one in shown.json()["items"] if "results" in one["data"]]
    assert "line 1 of many" in str(results)
    assert record["state"] == JobState.QUEUED

    await asyncio.to_thread(THIS_RELEASE.start_worker, place, SLOTS)
    assert (await client.wait(job_id, 120)).state is JobState.SUCCEEDED
    outputs = [str(one.data) async for one in client.events(job_id) if "event" in one.data]
    assert any("line 400 of many" in one for one in outputs)


async def test_a_job_that_two_earlier_releases_have_left_stuck_runs_here(
    place: Installation, client: JobClient, releases: dict[str, Release]
) -> None:
    await releases["wire-1-layout-2"].run(place, ON_A_LEDGER.format("submitted(ledger)"))
    refusal = await releases["wire-1-layout-1"].run(place, ON_A_LEDGER.format("claimed(ledger)"))
    record = await client.get("stuck")
    assert (record.state, record.wire) == (JobState.QUEUED, 2), refusal

    await start_worker(THIS_RELEASE, place, client)

    await ended(client, ["stuck"])


def test_a_clone_without_the_history_says_what_it_lacks(tmp_path: Path) -> None:
    listed = {"wire": 7, "layout": 9, "commit": "0123456789" * 4}

    with pytest.raises(LookupError, match=r"lacks commit 0123.* wire version 7 .*--unshallow"):
        earlier_release(listed, tmp_path)
