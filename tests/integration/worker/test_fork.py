"""A job goes on from an earlier point of another, which stays as it is."""

from __future__ import annotations

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.fixtures import place_fixture
from tests.integration.scripts import DONE, conversation, says, shell
from tests.integration.worker.approvals import file_of, journal
from tests.integration.worker.children import DELEGATING, delegates, until

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

SCRIPT = (
    conversation("^split", shell("echo mine > own.txt"), delegates("make it"), DONE, DONE),
    conversation("^make", shell("sleep 3; echo made > made.txt"), DONE),
    conversation(
        "^several",
        *(shell(f"echo {number} >> steps.txt; sleep 0.5") for number in range(6)),
        says("All six."),
        *(DONE for _ in range(6)),
    ),
)


DOCKER = pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.slow])


place = place_fixture(
    *SCRIPT,
    scope="module",
    providers=["local", DOCKER],
    agents=DELEGATING,
    workers=1,
    FANOUT_WORKER__CHECKPOINT_SECONDS="0.1",
)


@pytest.mark.slow
async def test_a_job_that_waits_is_forked_and_goes_on(client: JobClient) -> None:
    first = await client.submit(make_spec("split", agent="lead"))
    await until(client, first, JobState.WAITING)
    point = (await journal(client, first, EventType.CHECKPOINT))[-1].id

    forked = await client.submit(make_spec("do it alone", continues=first, at=point))
    assert (await client.get(first)).state is JobState.WAITING
    other = await client.wait(forked, 60)
    original = await client.wait(first, 60)

    assert (other.success, original.success) == (True, True), other.error
    assert {file.path for file in original.files_modified} == {"own.txt", "made.txt"}
    assert other.files_modified == ()  # what it started from has own.txt
    assert other.usage.model_calls == 1


@pytest.mark.slow
async def test_a_fork_has_the_files_and_the_conversation_of_its_point(client: JobClient) -> None:
    first = await client.run(make_spec("several"))
    points = await journal(client, first.job_id, EventType.CHECKPOINT)
    replies = await journal(client, first.job_id, EventType.MODEL_REPLY)
    befores = [(sum(reply.id < point.id for reply in replies), point.id) for point in points]
    before, point = next(found for found in reversed(befores) if found[0] < 6)
    assert before > 0

    forked = await client.run(make_spec("another way", continues=first.job_id, at=point))

    assert forked.success, forked.error
    # Its next reply is the one after those that it already has.
    assert forked.usage.model_calls == len(replies) - before
    assert len((await file_of(client, forked.job_id, "steps.txt")).split()) == 6


@pytest.mark.slow
async def test_the_last_event_of_a_job_that_has_ended_is_its_end(client: JobClient) -> None:
    first = await client.run(make_spec("several"))
    *_, last = [event async for event in client.events(first.job_id, follow=False)]

    forked = await client.run(make_spec("and now", continues=first.job_id, at=last.id))

    assert (forked.success, forked.usage.model_calls) == (True, 1), forked.error


@pytest.mark.slow
async def test_an_event_that_is_no_point_is_refused_with_those_that_are(client: JobClient) -> None:
    first = await client.run(make_spec("several"))
    points = await journal(client, first.job_id, EventType.CHECKPOINT)
    (begun, *_) = await journal(client, first.job_id, EventType.SANDBOX_READY)

    with pytest.raises(InvalidJob, match=f"choose one of .*{points[-1].id}"):
        await client.submit(make_spec("x", continues=first.job_id, at=begun.id))
