"""Workers of an older, of this and of a newer release beside each other, on a real Redis."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.agent_definitions import load_agent_definitions
from fanout.orchestrator.jobs import versions
from fanout.orchestrator.jobs.state import JobRecord, JobState
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger
from tests.builders import make_spec
from tests.integration.scripts import DONE, conversation, shell
from tests.services import Installation, Installer, WorkerProcess
from tests.unit.wire.record import FULL, RECORDED
from tests.waits import eventually, until_event

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

OLDER, NEWER = "tests.integration.worker.older_release", "tests.integration.worker.newer_release"
SCRIPT = (
    conversation(
        "two steps",
        shell("echo one >> steps.txt"),
        shell("sleep 30"),
        shell("echo two >> steps.txt"),
        DONE,
    ),
    conversation(".*", DONE),
)
WATCHED_SECONDS = 3
NEXT = versions.WIRE_NEWEST + 1


@pytest.fixture(scope="module")
def place(install_for_module: Installer) -> Installation:
    """An older worker and two of this release."""
    made = install_for_module(*SCRIPT, FANOUT_WORKER__SHUTDOWN_GRACE_SECONDS="2")
    made.start_worker(module=OLDER)
    made.start_worker()
    made.start_worker()
    return made


@pytest.fixture
async def client(place: Installation) -> AsyncIterator[JobClient]:
    async with place.client() as client:
        await place.ready(client, 2)
        yield client


@pytest.fixture
async def real_redis(place: Installation) -> AsyncIterator[Redis]:
    async with connect(place.redis.url) as redis:
        yield redis


def name_of(worker: WorkerProcess) -> str:
    assert worker.process is not None
    return f"-{worker.process.pid}"


async def workers_of(client: JobClient, job_id: str) -> list[str]:
    events = [event async for event in client.events(job_id, follow=False)]
    return [str(event.data["worker"]) for event in events if "worker" in event.data]


async def until_waiting_for(client: JobClient, job_id: str, words: str) -> JobRecord:
    return await eventually(
        lambda: client.get(job_id), lambda record: words in (record.waiting_for or "")
    )


@pytest.mark.slow
async def test_jobs_run_where_they_are_understood_and_wait_for_that_unharmed(
    place: Installation, client: JobClient, real_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.ready(client, 3)
    older = place.workers[0]
    ids = await client.submit_many([(make_spec(root_id="tree"), None) for _ in range(6)])
    results = [await client.wait(job_id, 60) for job_id in ids]
    assert [(result.success, result.attempts) for result in results] == [(True, 1)] * 6
    for job_id in ids:
        (ran_on,) = await workers_of(client, job_id)
        assert not ran_on.endswith(name_of(older))

    monkeypatch.setattr(versions, "ADDED", {NEXT: frozenset({"labels"})})
    new = await client.submit(make_spec(labels={"only": "newer ones know"}))
    record = await until_waiting_for(client, new, f"a newer worker: it needs wire version {NEXT}")
    began = time.monotonic()
    before = int(await real_redis.hget(Keys().job(new), "dispatches") or 0)
    await asyncio.sleep(WATCHED_SECONDS)
    dispatches = int(await real_redis.hget(Keys().job(new), "dispatches") or 0)
    assert dispatches - before <= 4 * (time.monotonic() - began)
    refusals = [event async for event in client.events(new, follow=False) if "reason" in event.data]
    assert len(refusals) <= 2
    assert (record.state, record.attempt) == (JobState.QUEUED, 0)

    newer = await asyncio.to_thread(place.start_worker, module=NEWER)
    try:
        result = await client.wait(new, 60)
    finally:
        await asyncio.to_thread(newer.stop)
    assert (result.success, result.attempts) == (True, 1)
    (ran_on,) = await workers_of(client, new)
    assert ran_on.endswith(name_of(newer))


@pytest.mark.slow
async def test_a_conversation_of_a_newer_release_waits_for_one_that_can_go_on_with_it(
    place: Installation, client: JobClient, real_redis: Redis
) -> None:
    job_id = await client.submit(make_spec("two steps"))
    await until_event(
        client,
        job_id,
        lambda event: event.type is EventType.TOOL_CALL and "sleep" in str(event.data),
    )
    thought = await real_redis.xadd(
        Keys().journal(job_id), {"type": "thought", "attempt": "1", "data": '{"text": "hm"}'}
    )
    (ran_on,) = await workers_of(client, job_id)
    (holder,) = [worker for worker in place.workers if ran_on.endswith(name_of(worker))]
    await asyncio.to_thread(holder.send, signal.SIGTERM)

    record = await until_waiting_for(client, job_id, "a newer worker: the living ones cannot read")

    assert (record.state, record.attempt, record.wire) == (JobState.QUEUED, 0, 1)
    told = [str(event.data.get("reason")) async for event in client.events(job_id, follow=False)]
    assert "The job's journal has an event that this release does not know: thought." in told
    await real_redis.xdel(Keys().journal(job_id), thought)  # as if the newer one knew it
    newer = await asyncio.to_thread(place.start_worker, module=NEWER)
    result = await client.wait(job_id, 60)
    assert (result.success, result.attempts) == (True, 1)
    async with client.changes(job_id) as bundle:
        (file,) = bundle.changes.files
        assert file.after is not None
        steps = await asyncio.to_thread(bundle.content, file.after)
    assert steps.decode().split() == ["one", "two"]
    assert (await workers_of(client, job_id))[-1].endswith(name_of(newer))


@pytest.mark.slow
async def test_a_job_of_an_agent_that_only_a_newer_installation_has_waits_for_that(
    place: Installation, client: JobClient, tmp_path: Path
) -> None:
    (tmp_path / "linter.yaml").write_text("name: linter\ndescription: Lints.\ninstruction: Lint.\n")
    definitions = await asyncio.to_thread(load_agent_definitions, tmp_path)
    async with JobClient(place.redis.url, place.settings, definitions) as newer:
        job_id = await newer.submit(make_spec("lint", agent="linter"))
    record = await until_waiting_for(client, job_id, "agent linter, which no worker has read yet")
    assert (record.state, record.attempt) == (JobState.QUEUED, 0)

    worker = await asyncio.to_thread(place.start_worker, FANOUT_AGENTS_DIR=str(tmp_path))
    try:
        result = await client.wait(job_id, 60)
    finally:
        await asyncio.to_thread(worker.stop)

    assert (result.success, result.attempts) == (True, 1)
    (ran_on,) = await workers_of(client, job_id)
    assert ran_on.endswith(name_of(worker))


@pytest.mark.parametrize("version", sorted(path.name for path in RECORDED.iterdir()))
async def test_a_recorded_message_starts_its_job(
    place: Installation, client: JobClient, real_redis: Redis, version: str
) -> None:
    message = json.loads(
        await asyncio.to_thread((RECORDED / version / "celery-message.json").read_text)
    )
    ledger = Ledger(real_redis, Keys())
    spec = make_spec()
    await ledger.submit([spec])
    await ledger.dispatch(1)  # and the message is lost
    body = base64.b64decode(message["body"]).decode().replace(FULL.id, spec.id)
    message["body"] = base64.b64encode(body.encode()).decode()
    await real_redis.lpush("fanout:queue:fanout", json.dumps(message))

    result = await client.wait(spec.id, 60)

    assert result.success
