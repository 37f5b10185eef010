"""Outages of Redis, short and long: they cost time and nothing else."""

from __future__ import annotations

import asyncio
import signal

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.fixtures import place_fixture
from tests.integration.scripts import DONE, conversation, shell
from tests.services import Installation
from tests.waits import until_event

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

STEPS = 8
SCRIPT = conversation(
    "steps", *(shell(f"echo {n} >> steps.txt; sleep 0.5") for n in range(STEPS)), DONE
)
LEASE_SECONDS, LONGER_SECONDS, SHORTER_SECONDS = 4, 6, 0.5


place = place_fixture(SCRIPT, workers=1, FANOUT_WORKER__LEASE_SECONDS=str(LEASE_SECONDS))


@pytest.mark.parametrize("outage", ["killed", "hangs"])
async def test_a_job_with_one_attempt_outlives_outages_that_are_longer_than_its_lease(
    place: Installation, client: JobClient, outage: str
) -> None:
    job_id = await client.submit(make_spec("steps", max_attempts=1))
    for calls, seconds in ((1, SHORTER_SECONDS), (2, LONGER_SECONDS), (4, LONGER_SECONDS)):
        await until_event(client, job_id, EventType.TOOL_CALL, calls)
        if outage == "hangs":
            place.redis.send(signal.SIGSTOP)
            await asyncio.sleep(seconds)
            place.redis.send(signal.SIGCONT)
        else:
            await asyncio.to_thread(place.redis.kill)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(place.redis.start)

    result = await client.wait(job_id, 60)

    events = [event async for event in client.events(job_id, follow=False)]
    assert (result.success, result.attempts) == (True, 1), result.error
    states = [event.data for event in events if event.type is EventType.JOB_STATE]
    assert [data["state"] for data in states].count(
        "running"
    ) <= 3  # the short one was waited through
    reasons = {data.get("reason") for data in states if data["state"] == "queued"} - {None}
    assert reasons == {"The lease was not renewed in time, so this attempt stops."}


async def test_a_lost_worker_costs_its_job_an_attempt_all_the_same(
    place: Installation, client: JobClient
) -> None:
    job_id = await client.submit(make_spec("steps", max_attempts=1))
    await until_event(client, job_id, EventType.TOOL_CALL, 1)
    place.workers[0].kill()
    place.start_worker()

    result = await client.wait(job_id, 60)

    assert result.error is not None
    assert result.error.type == "AttemptsUsedUp"
