"""A job goes on with the conversation and the files of one that has ended."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.failures import BlobMissing, InvalidJob, UnknownJob
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import JobSpec, Limits
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Ledger
from fanout.orchestrator.workspace.blobs import BlobStore
from tests.builders import make_spec
from tests.faults.stopping import until_prints
from tests.integration.scripts import DONE, call, calls, conversation, says, shell
from tests.integration.worker.approvals import GUARDED, file_of, parked
from tests.integration.worker.children import LEAD, children_of, delegates, until
from tests.services import Installation, Installer

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

RECORDING = "tests.integration.worker.recording_worker"
EDIT = call(
    "edit_file", file_path="/workspace/notes.txt", old_string="one", new_string="one and two"
)
SCRIPT = (
    conversation(
        "^write",
        shell("echo one > notes.txt"),
        says("It is written."),
        calls(EDIT),
        says("It is edited."),
        shell("cat notes.txt > seen.txt"),
        says("It is seen."),
    ),
    conversation("^sleep", shell("echo begun > begun.txt; echo begun; sleep 600"), DONE),
    conversation("^ask", shell("echo asked > asked.txt"), says("Never mind."), DONE),
    conversation("^nap", shell("sleep 600"), says("Never mind.")),
    conversation("^delegate", delegates("make it"), DONE, shell("cat made.txt > seen.txt"), DONE),
    conversation("^wait", delegates("sleep on"), DONE),
    conversation("^make", shell("echo made > made.txt"), DONE),
    conversation("^verified", says("Right."), says("Right again."), shell("touch right"), DONE),
    conversation("^listen", shell("sleep 2"), DONE, shell("sleep 2"), DONE),
)


DOCKER = pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.slow])


@pytest.fixture(scope="module", params=["local", DOCKER])
def place(request: pytest.FixtureRequest, install_for_module: Installer) -> Installation:
    installer = install_for_module.below(str(request.param))
    return with_worker(installer, FANOUT_SANDBOX__PROVIDER=str(request.param))


def with_worker(installer: Installer, **settings: str) -> Installation:
    requests = str(installer.folder / "requests.jsonl")
    agents = {"lead": LEAD, "guarded": GUARDED}
    made = installer(*SCRIPT, agents=agents, FANOUT_TEST_REQUESTS=requests, **settings)
    made.start_worker(module=RECORDING)
    return made


def continuing(result: JobResult, description: str, **fields: Any) -> JobSpec:
    return make_spec(description, continues=result.job_id, **fields)


def blobs_of(place: Installation) -> BlobStore:
    return BlobStore((place.folder / "state" / "blobs").as_uri())


def last_request(place: Installation, containing: str) -> dict[str, Any]:
    """The last request to the model in which the user said this."""
    lines = (place.folder / "requests.jsonl").read_text().splitlines()
    asked = [json.loads(line) for line in lines]
    return next(one for one in reversed(asked) if containing in one["said"])


async def until_it_runs(
    client: JobClient, job_id: str, after: EventType = EventType.JOB_STATE
) -> None:
    """Wait until a tool was started after the first event of a kind."""
    seen: list[object] = []
    async with asyncio.timeout(60):
        async for event in client.events(job_id):
            if event.type is EventType.TOOL_CALL and after in seen:
                return
            seen.append(event.type)


async def cancelled(client: JobClient, job_id: str) -> JobResult:
    await client.cancel(job_id)
    return await client.wait(job_id, 60)


async def test_a_second_and_a_third_job_go_on_where_the_one_before_ended(
    place: Installation, client: JobClient
) -> None:
    strict = Limits(max_model_calls=3)
    first = await client.run(make_spec("write one", limits=strict, labels={"goal": "notes"}))
    second = await client.run(continuing(first, "edit it"))
    third = await client.run(continuing(second, "look at it"))

    assert (first.success, second.success, third.success) == (True, True, True), third.error
    assert [file.path for file in second.files_modified] == ["notes.txt"]
    assert await file_of(client, second.job_id, "notes.txt") == "one and two\n"
    assert await file_of(client, third.job_id, "seen.txt") == "one and two\n"
    said = last_request(place, "look at it")["said"]
    assert [line for line in said if not line.startswith("result")] == [
        *("write one", "call execute", "It is written."),
        *("edit it", "call edit_file", "It is edited."),
        *("look at it", "call execute"),
    ]
    record = await client.get(third.job_id)
    assert (record.limits, record.labels) == (strict, {"goal": "notes"})


async def test_what_the_first_job_used_does_not_count(client: JobClient) -> None:
    first = await client.run(make_spec("write one"))
    second = await client.run(continuing(first, "edit it"))

    assert (second.usage.model_calls, second.usage.tool_calls) == (2, 1)
    assert (await client.tree_usage(second.job_id)).model_calls == 2


async def test_the_agent_is_told_what_is_gone(place: Installation, client: JobClient) -> None:
    first = await client.run(make_spec("write one, please"))
    assert "goes on from earlier" not in last_request(place, "write one, please")["system"]

    await client.run(continuing(first, "edit it"))

    assert "goes on from earlier" in last_request(place, "write one, please")["system"]


async def test_a_command_of_a_cancelled_job_was_interrupted(
    place: Installation, client: JobClient
) -> None:
    job_id = await client.submit(make_spec("sleep"))
    await until_it_runs(client, job_id)
    await until_prints(client, job_id)  # the file is written
    first = await cancelled(client, job_id)

    second = await client.run(continuing(first, "stop sleeping"))

    assert second.success, second.error
    _, called, answer, message = last_request(place, "stop sleeping")["said"]
    assert (called, message) == ("call execute", "stop sleeping")
    assert "Interrupted" in answer
    assert len((await client.get(second.job_id)).layers) == 1


async def test_an_approval_that_was_pending_is_no_longer(
    place: Installation, client: JobClient
) -> None:
    job_id = await client.submit(make_spec("ask", agent="guarded"))
    await parked(client, job_id)
    first = await cancelled(client, job_id)

    second = await client.run(continuing(first, "go on without"))

    assert (second.state, second.files_modified) == (JobState.SUCCEEDED, ())
    assert await client.approvals() == []
    assert (await client.get(second.job_id)).agent == "guarded"
    _, _, answer, _ = last_request(place, "go on without")["said"]
    assert "Not carried out" in answer


async def test_an_approved_command_of_a_cancelled_job_was_interrupted(
    place: Installation, client: JobClient
) -> None:
    job_id = await client.submit(make_spec("nap", agent="guarded"))
    (approval,) = await parked(client, job_id)
    await client.answer(approval.id, "approve")
    await until_it_runs(client, job_id, after=EventType.APPROVAL_RESOLVED)
    first = await cancelled(client, job_id)

    second = await client.run(continuing(first, "wake up"))

    assert second.success, second.error
    _, _, answer, _ = last_request(place, "wake up")["said"]
    assert "Interrupted" in answer


async def test_a_policy_is_not_loosened(client: JobClient) -> None:
    asked = {"execute": ["approve", "reject"]}
    first = await client.run(make_spec("verified", interrupt_on=asked))
    guarded = await cancelled(client, await parked_job(client, make_spec("ask", agent="guarded")))

    looser = await client.submit(continuing(first, "again", interrupt_on={"execute": False}))
    other = await client.submit(continuing(guarded, "again", agent="general-purpose"))

    assert (await client.get(looser)).interrupt_on == {"execute": ("approve", "reject")}
    assert set((await client.get(other)).interrupt_on) == {"execute", "write_file"}
    assert [approval.tool for approval in await parked(client, other)] == ["execute"]
    await client.wait(looser, 60)
    await cancelled(client, other)


async def parked_job(client: JobClient, spec: JobSpec) -> str:
    job_id = await client.submit(spec)
    await parked(client, job_id)
    return job_id


async def test_what_a_child_did_is_part_of_it(place: Installation, client: JobClient) -> None:
    first = await client.run(make_spec("delegate", agent="lead"))
    second = await client.run(continuing(first, "look at what was made"))

    assert second.success, second.error
    assert await file_of(client, second.job_id, "seen.txt") == "made\n"
    assert await children_of(client, second.job_id) == []
    said = last_request(place, "look at what was made")["said"]
    (answer,) = [line for line in said if "Done as asked" in line and line.startswith("result")]
    assert '"status": "success"' in answer


async def test_tasks_of_a_cancelled_job_are_not_waited_for(
    place: Installation, client: JobClient
) -> None:
    job_id = await client.submit(make_spec("wait", agent="lead"))
    await until(client, job_id, JobState.WAITING)
    first = await cancelled(client, job_id)

    second = await client.run(continuing(first, "do it without them"))

    assert second.success, second.error
    said = last_request(place, "do it without them")["said"]
    assert len(said) == 4
    assert "The work ended before these tasks answered" in said[2]


async def test_a_verification_holds_for_the_next_job_too_and_starts_anew(
    client: JobClient,
) -> None:
    first = await client.run(make_spec("verified", verify="test -e right", max_reworks=1))
    second = await client.run(continuing(first, "mend it"))

    assert (first.state, second.state) == (JobState.FAILED, JobState.SUCCEEDED), second.error
    assert second.verified is not None
    assert second.verified.command == "test -e right"
    assert second.usage.model_calls == 2


@pytest.mark.slow
async def test_a_message_to_the_next_job_is_read(place: Installation, client: JobClient) -> None:
    first_id = await client.submit(make_spec("listen"))
    await until_it_runs(client, first_id)
    await client.send(first_id, "the first message")
    first = await client.wait(first_id, 60)
    second_id = await client.submit(continuing(first, "listen once more"))
    await until_it_runs(client, second_id)
    await client.send(second_id, "the second message")
    second = await client.wait(second_id, 60)

    assert (first.unread_messages, second.unread_messages) == ((), ())
    said = " ".join(last_request(place, "listen once more")["said"])
    assert (said.count("the first message"), said.count("the second message")) == (1, 1)


async def test_what_cannot_be_continued_is_refused_in_words(
    client: JobClient, tmp_path: Path
) -> None:
    running = await client.submit(make_spec("sleep"))
    ended = await client.run(make_spec("make it"))

    with pytest.raises(InvalidJob, match=f"Job {running} has not ended: wait for it or cancel it"):
        await client.submit(make_spec("now", continues=running))
    with pytest.raises(UnknownJob, match="There is no job nobody"):
        await client.submit(make_spec("now", continues="nobody"))
    with pytest.raises(InvalidJob, match="give no workspace"):
        await client.submit(continuing(ended, "now"), workspace=tmp_path)
    await cancelled(client, running)


async def test_a_conversation_that_is_too_long_or_has_expired_is_refused_in_words(
    place: Installation, client: JobClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await client.run(make_spec("write one"))
    assert first.changes is not None

    with monkeypatch.context() as patched:
        patched.setattr("fanout.orchestrator.delegation.continuation.MAX_CONVERSATION_BYTES", 100)
        with pytest.raises(InvalidJob, match="too much to continue it: apply its changes"):
            await client.submit(continuing(first, "edit it"))
    await blobs_of(place).delete(first.changes)
    with pytest.raises(BlobMissing, match=f"of job {first.job_id} have expired"):
        await client.submit(continuing(first, "edit it"))


async def test_a_continuation_is_submitted_again_and_retried_as_it_was(client: JobClient) -> None:
    first = await client.run(make_spec("write one"))
    spec = continuing(first, "edit it")
    second = await client.run(spec)

    assert await client.submit(spec) == second.job_id
    retried = await client.wait(await client.retry(second.job_id), 60)

    assert retried.success, retried.error
    assert await file_of(client, retried.job_id, "notes.txt") == "one and two\n"
    records = [await client.get(one.job_id) for one in (second, retried)]
    assert len({(one.continues, one.conversation, one.start) for one in records}) == 1


@pytest.fixture
def own_place(install: Installer) -> Installation:
    """An installation whose worker a test may stop."""
    return with_worker(install)


async def test_nothing_of_the_first_job_is_needed_any_more(own_place: Installation) -> None:
    place = own_place
    redis = connect(place.redis.url)
    async with place.client() as client, redis:
        await place.ready(client)
        first = await client.run(make_spec("write one"))
        place.workers[0].stop()
        second_id = await client.submit(continuing(first, "edit it"))
        await Ledger(redis, Keys()).forget(0)
        assert first.changes is not None
        await blobs_of(place).delete(first.changes)
        with pytest.raises(UnknownJob):
            await client.get(first.job_id)

        place.start_worker(module=RECORDING)
        second = await client.wait(second_id, 60)

        assert second.success, second.error
        assert await file_of(client, second_id, "notes.txt") == "one and two\n"


async def test_a_job_that_never_began_is_retried_instead(own_place: Installation) -> None:
    own_place.workers[0].stop()
    async with own_place.client() as client:
        never = await cancelled(client, await client.submit(make_spec("write one")))

        with pytest.raises(InvalidJob, match=f"fanout retry {never.job_id}"):
            await client.submit(continuing(never, "edit it"))
