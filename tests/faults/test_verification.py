"""A worker dies while it verifies an answer, and after it has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.faults.stopping import until_running
from tests.faults.test_worker_faults import ends_with_nothing_left, holder, two_workers
from tests.fixtures import BOTH_PROVIDERS, place_fixture
from tests.integration.scripts import DONE, conversation, says, shell
from tests.integration.worker.approvals import file_of
from tests.services import Installation
from tests.waits import until_event

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

SCRIPT = (
    conversation(
        "^mend",
        shell("echo wrong > answer.txt"),
        says("Done too early."),
        {**shell("echo right >> answer.txt"), "text": "mending", "delay_seconds": 3},
        DONE,
    ),
)
SECONDS = f"20.{os.getpid()}"
"""No other test sleeps so long."""
SLOW_ONCE = f"s={SECONDS}; test -e tried || {{ touch tried; sleep $s; }}; grep -q right answer.txt"


place = place_fixture(*SCRIPT, providers=BOTH_PROVIDERS, FANOUT_WORKER__LEASE_SECONDS="4")


async def test_a_verification_that_was_cut_off_is_run_again_and_no_answer_is_asked_twice(
    place: Installation, workspace: Path
) -> None:
    async with place.client() as client:
        await two_workers(place, client)
        job_id = await client.submit(make_spec("mend", verify=SLOW_ONCE), workspace=workspace)
        await until_event(client, job_id, EventType.MODEL_REPLY, 2)
        await until_running(f"sleep {SECONDS}")
        holder(place, await client.get(job_id)).kill()

        result = await client.wait(job_id, 60)

        assert result.success, result.error
        assert (result.attempts, result.usage.model_calls) == (2, 4)
        events = [event async for event in client.events(job_id, follow=False)]
        codes = [event.data["exit_code"] for event in events if event.type is EventType.VERIFY]
        assert codes == [1, 0]
        assert await file_of(client, job_id, "answer.txt") == "wrong\nright\n"
    await ends_with_nothing_left(place)


async def test_a_rejected_answer_is_mended_by_the_next_worker_and_not_verified_again(
    place: Installation, workspace: Path
) -> None:
    async with place.client() as client:
        await two_workers(place, client)
        spec = make_spec("mend", verify="grep -q right answer.txt")
        job_id = await client.submit(spec, workspace=workspace)
        await until_event(client, job_id, EventType.VERIFY)  # its mending begins in three seconds
        holder(place, await client.get(job_id)).kill()

        result = await client.wait(job_id, 60)

        assert result.success, result.error
        assert (result.attempts, result.usage.model_calls) == (2, 4)
        events = [event async for event in client.events(job_id, follow=False)]
        codes = [event.data["exit_code"] for event in events if event.type is EventType.VERIFY]
        assert codes == [1, 0]
