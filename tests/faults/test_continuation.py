"""A worker dies in the middle of a job that continues another."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.faults.test_worker_faults import ends_with_nothing_left, holder, two_workers
from tests.fixtures import BOTH_PROVIDERS, place_fixture
from tests.integration.scripts import DONE, conversation, shell
from tests.integration.worker.approvals import file_of
from tests.services import Installation
from tests.waits import until_event

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

SCRIPT = (
    conversation(
        "^begin",
        shell("echo one > steps.txt"),
        DONE,
        shell("echo two >> steps.txt"),
        {**shell("sleep 600; echo three >> steps.txt"), "text": "third step"},
        shell("echo four >> steps.txt"),
        DONE,
    ),
    conversation(
        "^die",
        shell("echo one >> steps.txt"),
        shell("sleep 12; echo two >> steps.txt"),
        DONE,
    ),
)


place = place_fixture(*SCRIPT, providers=BOTH_PROVIDERS, FANOUT_WORKER__LEASE_SECONDS="4")


async def test_a_continuation_is_resumed_by_the_next_worker(
    place: Installation, workspace: Path
) -> None:
    async with place.client() as client:
        await two_workers(place, client)
        first = await client.wait(await client.submit(make_spec("begin"), workspace=workspace), 60)
        job_id = await client.submit(make_spec("go on", continues=first.job_id))
        await until_event(client, job_id, EventType.TOOL_CALL, 2)
        holder(place, await client.get(job_id)).kill()

        result = await client.wait(job_id, 60)

        assert result.success, result.error
        assert (result.attempts, result.usage.model_calls) == (2, 4)
        steps = (await file_of(client, job_id, "steps.txt")).split()
        assert steps[:2] == ["one", "two"]
        assert steps[-1] == "four"
        replies = [
            event
            async for event in client.events(job_id, follow=False)
            if event.type is EventType.MODEL_REPLY
        ]
        assert len(replies) == 4
    await ends_with_nothing_left(place)


async def test_work_whose_files_were_lost_with_the_worker_is_not_part_of_it(
    place: Installation, workspace: Path
) -> None:
    async with place.client() as client:
        await two_workers(place, client)
        job_id = await client.submit(make_spec("die", max_attempts=1), workspace=workspace)
        await until_event(client, job_id, EventType.TOOL_CALL, 2)
        holder(place, await client.get(job_id)).kill()
        first = await client.wait(job_id, 60)
        assert first.error is not None
        assert (first.error.type, first.changes) == ("AttemptsUsedUp", None)

        second = await client.wait(await client.submit(make_spec("again", continues=job_id)), 60)

        assert second.success, second.error
        assert second.usage.model_calls == 3
        assert await file_of(client, second.job_id, "steps.txt") == "one\ntwo\n"
