"""Jobs of remote agents: a real worker, a real Redis, and an A2A server of the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from a2a.types import Message, Part, Role, StreamResponse
from google.protobuf.json_format import MessageToDict

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.agent_definitions import RemoteAgentDefinition
from fanout.orchestrator.extras import connect_agent
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.workers.extras.remote_agents.messages import read_reply
from fanout.workers.extras.remote_agents.remote_agent import STATES, stopped_task
from tests.a2a_servers import RemoteService, remote_service
from tests.builders import make_spec
from tests.integration.scripts import DONE, conversation
from tests.integration.worker.approvals import file_of, journal, parked
from tests.integration.worker.children import children_of, delegates
from tests.services import Installation, Installer, free_port

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]

LATE_PORT = free_port()
KEY = "canary-remote-key-8841"
HEAD = "name: {name}\ndescription: Works elsewhere.\na2a:\n  url: {url}\n"
CREDENTIALS = "  credentials: [{secret: REMOTE_KEY}]\n"


@pytest.fixture(scope="module")
def service() -> Iterator[RemoteService]:
    with remote_service(key=KEY) as running:
        yield running


def make_agents(service: RemoteService) -> dict[str, str]:
    schema = "{type: object, properties: {lines: {type: integer}}, required: [lines]}"
    remote = {
        "remote": CREDENTIALS + "  files: all\n",
        "mute": "",
        "measuring": CREDENTIALS + f"output_schema: {schema}\n",
        "small": CREDENTIALS + "  max_bytes: 4096\n",
        "checked": CREDENTIALS + "verify: test -e done || (touch done; exit 1)\n",
    }
    head = "name: {}\ndescription: Delegates.\ninstruction: Do it.\n{}subagents: [remote]\n"
    return {
        **{name: HEAD.format(name=name, url=service.url) + text for name, text in remote.items()},
        "lead": head.format("lead", ""),
        "careful": head.format("careful", "interrupt_on: {write_file: true}\n"),
        "late": HEAD.format(name="late", url=f"http://127.0.0.1:{LATE_PORT}"),
    }


def installed(install: Installer, service: RemoteService, **environment: str) -> Installation:
    return install(
        conversation("delegate", delegates("files", agent="remote"), DONE),
        agents=make_agents(service),
        workers=1,
        FANOUT_SECRETS__REMOTE_KEY=KEY,
        **environment,
    )


@pytest.fixture(scope="module")
def place(install_for_module: Installer, service: RemoteService) -> Installation:
    return installed(install_for_module, service)


@pytest.fixture
def in_docker(install: Installer, service: RemoteService) -> Installation:
    return installed(install, service, FANOUT_SANDBOX__PROVIDER="docker")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "in.txt").write_text("small")
    (folder / "notes.txt").write_text("one\n")
    return folder


async def make_result(place: Installation, description: str, agent: str = "remote") -> JobResult:
    async with place.client() as client:
        return await client.run(make_spec(description, agent=agent))


async def thinks(client: JobClient, job_id: str) -> None:
    """Wait until the journal shows what the agent says while it works."""
    async with asyncio.timeout(45):
        async for event in client.events(job_id):
            assert not event.ends_job, event.data
            if event.type is EventType.LOG and "Thinking hard." in str(event.data["text"]):
                return


async def has_its_files(client: JobClient, workspace: Path) -> JobResult:
    """Run a job whose agent answers with files and a patch, and check them."""
    spec = make_spec("files", agent="remote", context="Loud.")
    result = await client.run(spec, workspace=workspace)

    assert result.success, result
    changed = {file.path: str(file.change) for file in result.files_modified}
    assert changed == {"in.txt": "modified", "new/made.bin": "added", "notes.txt": "modified"}
    assert await file_of(client, result.job_id, "notes.txt") == "one\ntwo\n"
    assert await file_of(client, result.job_id, "in.txt") == "SMALL"
    return result


async def test_its_files_and_patches_become_the_changes_of_the_job(place, service, workspace):
    async with place.client() as client:
        result = await has_its_files(client, workspace)

    sent = service.messages[-1]
    assert result.summary.startswith("Did: files")
    assert result.usage.model_calls == 0
    assert "Loud." in sent.parts[0].text
    assert {part.filename for part in sent.parts[1:]} == {"in.txt", "notes.txt"}
    assert sent.message_id == f"{result.job_id}-1"
    assert set(service.keys) == {f"Bearer {KEY}"}


@pytest.mark.docker
async def test_its_files_are_put_into_a_container(in_docker, service, workspace):
    (workspace / "link").symlink_to("sub")
    (workspace / "sub").mkdir()
    (workspace / "sub" / "kept.txt").write_text("kept")
    async with in_docker.client() as client:
        await in_docker.ready(client)
        spec = make_spec("write link/through.txt", agent="remote")
        refused = await client.run(spec, workspace=workspace)
        (workspace / "link").unlink()
        (workspace / "sub" / "kept.txt").unlink()
        result = await has_its_files(client, workspace)

    assert result.sandbox == "docker"
    assert refused.files_modified == ()
    assert refused.error is not None
    assert "is a link" in refused.error.message


async def test_a_task_for_it_lands_in_the_files_of_the_agent_that_called_it(place, workspace):
    async with place.client() as client:
        result = await client.run(make_spec("delegate", agent="lead"), workspace=workspace)
        guarded = await client.run(make_spec("delegate", agent="careful"), workspace=workspace)
        (child,) = await children_of(client, guarded.job_id)
        refused = await client.result(child.id)

    assert {file.path for file in result.files_modified} == {"in.txt", "new/made.bin", "notes.txt"}
    assert guarded.files_modified == ()
    assert refused.error is not None
    assert "interrupt_on: write_file" in refused.error.message


async def test_it_answers_with_a_message_a_structure_or_a_failure(place, service):
    greeting, measured, prose, failed = await asyncio.gather(
        make_result(place, "greet"),
        make_result(place, "measure", "measuring"),
        make_result(place, "say nothing", "measuring"),
        make_result(place, "fail"),
    )

    assert (greeting.success, greeting.summary) == (True, "Hello.")
    assert measured.output == {"lines": 3}
    assert prose.error is not None
    assert "output_schema" in prose.error.message
    assert (failed.state, failed.summary) == (JobState.FAILED, "I could not.")
    assert failed.error is not None
    assert "failed" in failed.error.message


async def test_what_is_hostile_or_refused_ends_the_job_with_one_sentence(place, service):
    results = await asyncio.gather(
        make_result(place, "write ../escape.txt"),
        make_result(place, "write /etc/passwd"),
        make_result(place, "write .git/config"),
        make_result(place, "flood 100000", "small"),
        make_result(place, "greet", "mute"),
    )

    messages = [result.error.message for result in results if result.error]
    assert len(messages) == len(results)
    assert all("not one of the workspace" in message for message in messages[:3])
    assert "a2a.max_bytes" in messages[3]
    assert "a2a.credentials" in messages[4]
    assert all(not result.files_modified for result in results)
    assert all(result.attempts == 1 for result in results)


async def test_a_person_answers_its_question_and_a_follow_up_keeps_the_conversation(place, service):
    async with place.client() as client:
        job_id = await client.submit(make_spec("ask me", agent="remote"))
        (approval,) = await parked(client, job_id)
        assert approval.arguments == {"question": "Which colour?"}
        await client.answer(approval.id, "respond", response="Blue.")
        answered = await client.wait(job_id)
        followed = await client.run(make_spec("go on", agent="remote", continues=job_id))

    first, answer, later = service.messages[-3:]
    assert answered.summary == "Did: Blue."
    assert answer.task_id == first.task_id != later.task_id
    assert answer.context_id == later.context_id != ""
    assert followed.success


@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_a_call_that_it_asks_to_confirm_is_decided_not_answered(place, service, decision):
    async with place.client() as client:
        job_id = await client.submit(make_spec("confirm it", agent="remote"))
        (approval,) = await parked(client, job_id)
        assert approval.decisions == ("approve", "reject")
        assert '"what": "pay"' in str(approval.arguments["question"])
        await client.answer(approval.id, decision)
        assert (await client.wait(job_id)).success

    answer = service.messages[-1].parts[1]
    assert answer.metadata["adk_type"] == "function_response"
    assert MessageToDict(answer.data) == {
        "id": "call-7",
        "name": "adk_request_confirmation",
        "response": {"confirmed": decision == "approve"},
    }


async def test_files_by_address_are_fetched_from_its_own_origin_only(place, service):
    async with place.client() as client:
        result = await client.run(make_spec("link", agent="remote"))
        notes = await journal(client, result.job_id, EventType.LOG)

    assert [file.path for file in result.files_modified] == ["linked.txt"], result
    assert "another origin" in str([note.data for note in notes])


async def test_a_rejected_answer_is_sent_back_in_the_same_conversation(place, service):
    result = await make_result(place, "try", "checked")

    assert result.success, result
    first, again = service.messages[-2:]
    assert (first.message_id, again.message_id) == (f"{result.job_id}-1", f"{result.job_id}-2")
    assert again.context_id


async def test_a_message_to_the_job_is_sent_when_the_agent_has_answered(place, service):
    service.release.clear()
    async with place.client() as client:
        job_id = await client.submit(make_spec("slow question", agent="remote"))
        await thinks(client, job_id)
        await client.send(job_id, "And this too.")
        service.release.set()
        result = await client.wait(job_id)

    first, told = service.messages[-2:]
    assert (result.summary, result.unread_messages) == ("Did: And this too.", ())
    assert told.context_id == first.context_id


async def test_a_cancelled_job_cancels_its_remote_task(place, service):
    service.release.clear()
    before = len(service.cancelled)
    async with place.client() as client:
        job_id = await client.submit(make_spec("slow work", agent="remote"))
        await thinks(client, job_id)
        await client.cancel(job_id)
        result = await client.wait(job_id)

    assert result.state is JobState.CANCELLED
    assert len(service.cancelled) == before + 1


async def test_a_job_that_is_cancelled_while_it_waits_cancels_its_remote_task(place, service):
    async with place.client() as client:
        job_id = await client.submit(make_spec("ask me", agent="remote"))
        await parked(client, job_id)
        asked = await journal(client, job_id, EventType.MODEL_REPLY)
        await client.cancel(job_id)
    event = asked[-1].data["event"]
    assert isinstance(event, dict)
    task_id = event["custom_metadata"]["a2a"]["task"]
    await asyncio.to_thread(service.await_cancelled, task_id)


async def test_a_service_that_is_down_is_tried_again_by_the_next_attempt(place):
    async with place.client() as client:
        job_id = await client.submit(make_spec("greet", agent="late"))
        async for event in client.events(job_id):
            if event.data.get("state") == JobState.QUEUED and event.attempt:
                assert "RemoteAgentUnavailable" in str(event.data)
                break
        with remote_service(port=LATE_PORT):
            result = await client.wait(job_id)

    assert (result.success, result.summary) == (True, "Hello.")
    assert result.attempts > 1


async def test_a_killed_workers_successor_takes_the_task_up_again(place, service):
    service.release.clear()
    before = len(service.messages)
    async with place.client() as client:
        job_id = await client.submit(make_spec("slow and steady", agent="remote"))
        await thinks(client, job_id)
        place.workers[-1].kill()
        service.release.set()
        place.start_worker(concurrency=4)
        result = await client.wait(job_id)

    assert (result.success, result.summary) == (True, "Did: slow and steady")
    assert result.attempts == 2
    assert len(service.messages) == before + 1


@pytest.mark.parametrize(
    "options",
    [
        {"binding": "HTTP+JSON"},
        {"version": "0.3"},
        {"streaming": False},
        {"streaming": False, "version": "0.3"},
    ],
    ids=str,
)
async def test_other_transports_and_versions_are_spoken(options):
    async def show(update: StreamResponse) -> None:
        del update

    with remote_service(**options) as service:
        async with connect_agent(RemoteAgentDefinition(url=service.url), {}) as remote:
            message = Message(message_id="m1", role=Role.ROLE_USER, parts=[Part(text="slow one")])
            taken = ""
            async for update in remote.send(message, 30):
                taken = taken or update.task.id or update.status_update.task_id
                if taken:
                    break
            assert STATES.get((await remote.task(taken)).status.state) is None
            service.release.set()
            task = await stopped_task(remote, taken, show)
            await remote.cancel(taken)  # it has ended: nothing happens

    assert STATES[task.status.state] == "completed"
    assert read_reply(task).text == "Did: slow one"
