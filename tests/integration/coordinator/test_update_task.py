"""`update_task`: a message reaches a sub-agent that is at work, once, whatever dies."""

from __future__ import annotations

import asyncio

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.failures import InvalidJob, UnknownJob
from fanout.orchestrator.jobs.spec import JobSpec, new_job_id
from fanout.orchestrator.jobs.store.journal import EventType
from tests.fixtures import place_fixture
from tests.integration.coordinator.driving import Coordination, journal
from tests.integration.scripts import call, calls, conversation, says, shell
from tests.services import WAITS, Installation, Installer
from tests.waits import until_event

pytestmark = pytest.mark.redis

SCRIPT = (
    conversation(
        "^long: ",
        shell(WAITS),
        says("{{task}}\n\n## Summary\nfirst"),
        says("## Summary\nsecond"),
    ),
    conversation("^late", says("too soon", delay_seconds=2), says("## Summary\nwith the message")),
    conversation("^short", says("## Summary\nat once")),
    conversation(
        "^two steps", shell("echo one >> log; sleep 4"), shell("cat log"), says("## Summary\nended")
    ),
)


place = place_fixture(*SCRIPT, scope="module", workers=1)


async def delivered(client: JobClient, job_id: str) -> list[str]:
    """The messages that stand in the sub-agent's session, in order."""
    return [
        str(event.data["text"])
        for event in await journal(client, job_id)
        if "inbox_message" in str(event.data.get("event"))
    ]


async def test_the_agent_reads_it_before_its_next_model_call(
    client: JobClient, place: Installation
) -> None:
    job_id = await client.submit(JobSpec(agent="general-purpose", description="long: work"))
    await until_event(client, job_id, EventType.TOOL_CALL)
    await client.send(job_id, "use tabs")
    await client.send(job_id, "and no spaces")
    await place.let_end()
    result = await client.wait(job_id)
    assert result.success
    assert result.summary == "first"
    first, second = await delivered(client, job_id)
    assert "use tabs" in first
    assert "and no spaces" in second
    kinds = [event.type for event in await journal(client, job_id)]
    assert kinds.count(EventType.MESSAGE) == 2


async def test_a_message_to_a_job_that_has_not_begun_is_the_first_thing_that_it_reads(
    client: JobClient, place: Installation
) -> None:
    job_id = await client.submit(JobSpec(agent="general-purpose", description="long: work"))
    await client.send(job_id, "early word")
    await place.let_end()
    await client.wait(job_id)
    assert len(await delivered(client, job_id)) == 1


async def test_one_that_comes_during_the_last_reply_is_read_before_the_end(
    client: JobClient,
) -> None:
    job_id = await client.submit(JobSpec(agent="general-purpose", description="late"))
    await until_event(client, job_id, EventType.MODEL_REQUEST)
    await client.send(job_id, "wait, one more thing")
    result = await client.wait(job_id)
    assert result.summary == "with the message"
    assert len(await delivered(client, job_id)) == 1


async def test_one_that_comes_while_the_job_waits_for_a_person_is_read_when_it_goes_on(
    client: JobClient, place: Installation
) -> None:
    spec = JobSpec(
        agent="general-purpose", description="long: work", interrupt_on={"execute": True}
    )
    job_id = await client.submit(spec)
    await until_event(client, job_id, lambda event: event.data.get("state") == "waiting")
    await client.send(job_id, "while you wait")
    (approval,) = [found for found in await client.approvals() if found.job_id == job_id]
    await client.answer(approval.id, "approve")
    await place.let_end()
    assert (await client.wait(job_id)).summary == "first"
    assert len(await delivered(client, job_id)) == 1


async def test_what_has_ended_or_is_not_there_takes_no_message(client: JobClient) -> None:
    job_id = await client.submit(JobSpec(agent="general-purpose", description="short"))
    await client.wait(job_id)
    with pytest.raises(InvalidJob, match=r"has ended \(succeeded\): it takes no messages"):
        await client.send(job_id, "hello")
    with pytest.raises(UnknownJob):
        await client.send(new_job_id(), "hello")
    with pytest.raises(InvalidJob, match="1 to 20000 characters"):
        await client.send(job_id, " ")


@pytest.fixture
def lonely(install: Installer) -> Installation:
    """An installation of one worker, which may be killed."""
    made = install(*SCRIPT, FANOUT_WORKER__LEASE_SECONDS="4")
    made.start_worker(concurrency=1)
    return made


@pytest.mark.slow
async def test_a_killed_worker_neither_loses_a_message_nor_delivers_it_twice(
    lonely: Installation,
) -> None:
    async with lonely.client() as client:
        await lonely.ready(client)
        job_id = await client.submit(JobSpec(agent="general-purpose", description="two steps"))
        await client.send(job_id, "before the first step")
        await until_event(client, job_id, EventType.TOOL_CALL)
        await client.send(job_id, "during it")
        lonely.workers[0].kill()
        await client.send(job_id, "while nobody works")
        lonely.start_worker(concurrency=1)
        async with asyncio.timeout(45):
            result = await client.wait(job_id)
        assert result.success, result.error
        assert result.attempts == 2
        texts = await delivered(client, job_id)
        expected = ("before the first", "during it", "nobody works")
        assert all(words in text for words, text in zip(expected, texts, strict=True))


async def test_the_coordinator_tells_a_started_task_and_no_other_job(
    coordination: Coordination, shared_place: Installation
) -> None:
    mine, others = await coordination.new_session(), await coordination.new_session()
    started = await coordination.run(
        calls(call("start_task", description=f"run: {WAITS}")), session_id=mine
    )
    job_id = started.results[0]["task_id"]
    told = await coordination.run(
        calls(call("update_task", task_id=job_id, message="hurry")), session_id=mine
    )
    assert told.results == [{"status": "success", "task_id": job_id}]
    foreign = await coordination.run(
        calls(call("update_task", task_id=job_id, message="stop")), session_id=others
    )
    assert foreign.results[0]["status"] == "error"
    assert "no task" in foreign.results[0]["error"]
    await shared_place.let_end()
    assert (await coordination.client.wait(job_id)).success
    assert len(await delivered(coordination.client, job_id)) == 1
    late = await coordination.run(
        calls(call("update_task", task_id=job_id, message="x")), session_id=mine
    )
    assert "has ended" in late.results[0]["error"]
