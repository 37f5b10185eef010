"""Limits of a model over real workers.

What arrives at its service, and what the journals say of it.
"""

from __future__ import annotations

import json

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.spec import Limits
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from tests.builders import make_spec
from tests.integration.models.model_server import (
    Answer,
    ModelServer,
    call,
    environment,
    text,
)
from tests.services import Installation, Installer
from tests.waits import eventually, until_event

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

LIMITED, FREE = "gemini-2.5-flash", "gpt-5"
MOST = 5
STEP = Answer([call("execute", command="echo x >> steps.txt")])
DONE = Answer([text("Finished.\n\n## Summary\ndone")])


@pytest.fixture(scope="module")
def place(install_for_module: Installer, model_service: ModelServer) -> Installation:
    settings = {
        "FANOUT_MODEL": LIMITED,
        "FANOUT_MODELS": json.dumps({LIMITED: {"requests_per_minute": MOST}}),
        "FANOUT_WORKER__LEASE_SECONDS": "4",
    }
    keys = environment(model_service, "a-key-of-tests")
    return install_for_module(workers=2, concurrency=8, **keys, **settings)


@pytest.fixture(autouse=True)
def nothing_arrived(model_service: ModelServer) -> None:
    model_service.arrived.clear()


async def journal(client: JobClient, job_id: str) -> list[JournalEvent]:
    return [event async for event in client.events(job_id, follow=False)]


async def requests_of(client: JobClient, ids: list[str]) -> list[float]:
    """When requests were sent, as the journals have it."""
    events = [event for job_id in ids for event in await journal(client, job_id)]
    return sorted(event.at for event in events if event.type is EventType.MODEL_REQUEST)


def most_in_a_minute(times: list[float]) -> int:
    """How many there were in any minute, less what two requests may be late."""
    return max(sum(begin <= at < begin + 55 for at in times) for begin in times)


async def waits_of(client: JobClient, job_id: str) -> list[str]:
    events = await journal(client, job_id)
    return [str(event.data["text"]) for event in events if waits_for_model(event)]


async def until_its_attempt_waits(client: JobClient, job_id: str) -> None:
    """Wait until the job runs, on whichever worker, and its present attempt waits for the model."""

    async def waits() -> bool:
        record = await client.get(job_id)
        found = [event for event in await journal(client, job_id) if waits_for_model(event)]
        return record.state is JobState.RUNNING and found[-1].attempt == record.attempt

    await eventually(waits)


def waits_for_model(event: JournalEvent) -> bool:
    return event.data.get("stream") == "model"


@pytest.mark.slow
async def test_workers_keep_to_a_limit_together_and_what_waits_can_be_ended(
    client: JobClient, place: Installation, model_service: ModelServer
) -> None:
    model_service.answers[:] = [STEP] * 50
    specs = [make_spec(f"job {number}", limits=Limits(max_model_calls=40)) for number in range(5)]
    late = make_spec("late", limits=Limits(timeout_seconds=10))
    ids = [await client.submit(spec) for spec in (*specs, late)]
    for job_id in ids:
        await until_event(client, job_id, waits_for_model)
    told = await waits_of(client, ids[0])
    place.workers.pop(0).kill()
    await client.cancel(ids[0])
    cancelled = await client.wait(ids[0], 60)
    late_result = await client.wait(late.id, 60)
    place.start_worker(concurrency=8)
    for job_id in ids[1:-1]:
        await until_its_attempt_waits(client, job_id)

    assert len(told) == 1
    assert "5 requests a minute (FANOUT_MODELS)" in told[0]
    assert cancelled.state is JobState.CANCELLED
    assert late_result.state is JobState.TIMED_OUT
    assert most_in_a_minute(model_service.arrived) == MOST
    sent = await requests_of(client, ids)
    assert most_in_a_minute(sent) == MOST, "the journals say what was sent"
    for job_id in ids[1:-1]:
        await client.cancel(job_id)
        assert (await client.wait(job_id, 60)).state is JobState.CANCELLED
    assert most_in_a_minute(model_service.arrived) == MOST


@pytest.mark.slow
async def test_a_429_that_one_job_meets_holds_the_others_back(
    client: JobClient, model_service: ModelServer
) -> None:
    model_service.answers[:] = [Answer(status=429, headers={"Retry-After": "6"}), *[DONE] * 4]
    first = await client.submit(make_spec("meets it", model=FREE))
    await until_event(client, first, waits_for_model)
    others = [await client.submit(make_spec("heard of it", model=FREE)) for _ in range(3)]
    results = [await client.wait(job_id, 60) for job_id in (first, *others)]

    assert [result.success for result in results] == [True] * 4
    arrived = model_service.arrived
    assert len(arrived) == 5
    assert arrived[1] - arrived[0] >= 6
    assert arrived[2] - arrived[1] >= 1.5, "not all at once"
    sent = await requests_of(client, [first, *others])
    assert [abs(at - told) < 2.5 for at, told in zip(arrived, sent, strict=True)] == [True] * 5
    assert "none is sent for 6 s" in (await waits_of(client, first))[0]
