"""An agent that blocks the event loop of its worker.

Seen, logged, and no harm to the other jobs.
"""

from __future__ import annotations

import asyncio

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.workers.upkeep.watchdog import EXIT_BLOCKED
from tests.builders import make_spec
from tests.fixtures import place_fixture
from tests.integration.scripts import DONE, conversation, shell
from tests.services import Installation
from tests.waits import until_event

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

SCRIPT = (
    conversation("briefly", shell("true"), {**DONE, "blocks_seconds": 2}),
    conversation("for ever", shell("true"), {**DONE, "blocks_seconds": 3600}),
    conversation("innocent", shell("sleep 100; echo done > done.txt"), DONE),
)


place = place_fixture(*SCRIPT)


async def test_a_short_block_is_logged_with_its_stack_and_costs_nothing(
    place: Installation,
) -> None:
    worker = place.start_worker()
    async with place.client() as client:
        await place.ready(client)
        result = await client.run(make_spec("blocks briefly"))
    assert result.success
    assert result.attempts == 1
    logged = await asyncio.to_thread(worker.tail)
    assert "the loop is blocked" in logged
    assert "scripted_model.py" in logged  # where it stands
    assert result.job_id in logged  # and for which job


async def test_a_worker_whose_loop_stays_blocked_steps_down_and_the_other_jobs_lose_nothing(
    place: Installation,
) -> None:
    blocked = place.start_worker()
    async with place.client() as client:
        await place.ready(client)
        innocents = await client.submit_many([(make_spec("innocent"), None) for _ in range(2)])
        await _running(client, innocents)
        blocker = await client.submit(make_spec("blocks for ever", max_attempts=1))
        assert blocked.process is not None
        assert await asyncio.to_thread(blocked.process.wait, 60) == EXIT_BLOCKED
        await asyncio.to_thread(place.start_worker)
        results = [await client.wait(job_id) for job_id in innocents]
        ended = await client.wait(blocker)
        assert [(result.success, result.attempts) for result in results] == [(True, 1)] * 2
        assert ended.state is JobState.FAILED  # it does not take the next worker with it
        assert ended.error is not None
        assert ended.error.type == "AttemptsUsedUp"
        reasons = [
            event.data.get("reason")
            async for event in client.events(innocents[0], follow=False)
            if event.type is EventType.JOB_STATE
        ]
        assert "its worker was blocked" in reasons


async def _running(client: JobClient, job_ids: list[str]) -> None:
    for job_id in job_ids:
        await until_event(client, job_id, lambda event: event.data.get("state") == JobState.RUNNING)
