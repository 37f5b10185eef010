"""`JobAgent` under ADK's own runner: messages are jobs, confirmations are approvals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import SequentialAgent
from google.adk.events import Event
from google.adk.runners import InMemoryRunner
from google.genai import types

from fanout.orchestrator.adk.job_agent import JobAgent
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.state import JobState
from tests.integration.coordinator.driving import WORKER_SCRIPT, task
from tests.integration.scripts import call, calls, conversation, says, shell, write_script
from tests.services import Installation

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

WRITE = calls(call("write_file", file_path="/workspace/asked.txt", content="one"))


@pytest.fixture
async def client(shared_place: Installation) -> AsyncIterator[JobClient]:
    async with shared_place.client() as made:
        await shared_place.ready(made)
        yield made


class Chat:
    """A session with an agent."""

    def __init__(self, agent: Any) -> None:
        self.runner = InMemoryRunner(agent=agent, app_name="chat")

    async def say(self, *parts: types.Part) -> list[Event]:
        sessions = self.runner.session_service
        known = await sessions.get_session(app_name="chat", user_id="u", session_id="s")
        if known is None:
            await sessions.create_session(app_name="chat", user_id="u", session_id="s")
        message = types.Content(role="user", parts=list(parts))
        run = self.runner.run_async(user_id="u", session_id="s", new_message=message)
        return [event async for event in run]


def text(said: str) -> types.Part:
    return types.Part(text=said)


def texts(events: list[Event]) -> list[str]:
    found = (part for event in events if event.content for part in event.content.parts or ())
    return [part.text for part in found if part.text]


def confirmation(events: list[Event]) -> types.FunctionCall:
    """Return the one request for a confirmation among the events."""
    calls_made = (found for event in events for found in event.get_function_calls())
    (asked,) = [found for found in calls_made if found.name == "adk_request_confirmation"]
    return asked


def agent(client: JobClient, folder: Path, *replies: dict[str, Any], **fields: Any) -> JobAgent:
    script = write_script(folder, conversation("", *replies))
    given = {"agent": "general-purpose", "model": f"scripted:{script}", **fields}
    return JobAgent(client, **given)


async def test_a_message_is_a_job_and_the_next_one_continues_it(
    client: JobClient, tmp_path: Path, workspace: Path
) -> None:
    replies = (shell("echo one > list.txt"), says("Begun."), shell("echo two >> list.txt"))
    made = agent(client, tmp_path, *replies, says("Ended."), workspace=workspace)
    chat = Chat(made)

    first = await chat.say(text("begin"))
    assert texts(first)[-1] == "Begun."
    assert (workspace / "list.txt").read_text() == "one\n"
    second = await chat.say(text("go on"))

    assert texts(second)[-1] == "Ended."
    assert (workspace / "list.txt").read_text() == "one\ntwo\n"
    called = [found.name for event in second for found in event.get_function_calls()]
    assert called == ["execute"]
    assert {event.author for event in first + second} == {"general_purpose"}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def content(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


@pytest.mark.parametrize(
    ("answer", "written"),
    [
        ({"confirmed": True}, "one"),
        ({"confirmed": False}, None),
        (
            {
                "confirmed": True,
                "payload": {
                    "decision": "edit",
                    "arguments": {"file_path": "/workspace/asked.txt", "content": "two"},
                },
            },
            "two",
        ),
    ],
)
async def test_a_confirmation_answers_the_approval(
    client: JobClient, tmp_path: Path, workspace: Path, answer: dict[str, Any], written: str | None
) -> None:
    asks = {"interrupt_on": {"write_file": True}, "workspace": workspace}
    chat = Chat(agent(client, tmp_path, WRITE, says("Answered."), **asks))

    events = await chat.say(text("write"))
    asked = confirmation(events)
    assert "Answered." not in texts(events)
    response = types.FunctionResponse(id=asked.id, name=asked.name, response=answer)
    events = await chat.say(types.Part(function_response=response))

    assert texts(events)[-1] == "Answered."
    assert content(workspace / "asked.txt") == written


async def test_an_answer_that_ends_the_job_at_once_starts_no_other_job(
    client: JobClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = Chat(agent(client, tmp_path, WRITE, says("Ended."), interrupt_on={"write_file": True}))
    asked = confirmation(await chat.say(text("write")))
    answer = client.answer

    async def answer_and_wait(*given: Any, **fields: Any) -> str:
        job_id = await answer(*given, **fields)
        await client.wait(job_id)
        return job_id

    monkeypatch.setattr(client, "answer", answer_and_wait)
    confirmed = types.FunctionResponse(id=asked.id, name=asked.name, response={"confirmed": True})
    events = await chat.say(types.Part(function_response=confirmed))

    assert texts(events)[-1] == "Ended."
    assert not any(event.error_code for event in events)


async def test_a_childs_approval_is_asked_and_answered_in_the_session(
    client: JobClient, tmp_path: Path, workspace: Path
) -> None:
    asking = task("run: echo one > asked.txt")
    parent = conversation("please", calls(asking), says("The child is done."))
    script = write_script(tmp_path, {**parent, "agent": "coordinator"}, *WORKER_SCRIPT)
    asks = {"interrupt_on": {"execute": True}, "workspace": workspace}
    made = JobAgent(client, agent="coordinator", model=f"scripted:{script}", **asks)
    chat = Chat(made)

    events = await chat.say(text("please"))
    asked = confirmation(events)
    assert asked.args is not None
    assert asked.args["originalFunctionCall"]["name"] == "execute"
    assert "waiting: approval of execute" in texts(events)[-1]
    again = await chat.say(text("how is it going?"))
    assert [found for event in again for found in event.get_function_calls()] == []
    response = types.FunctionResponse(id=asked.id, name=asked.name, response={"confirmed": True})
    events = await chat.say(types.Part(function_response=response))

    assert "The child is done." in texts(events)
    assert content(workspace / "asked.txt") == "one\n"
    kept = [said for event in events if not event.partial for said in texts([event])]
    assert any(" · succeeded" in said and said.startswith("- ✓ ") for said in kept)
    events = await chat.say(types.Part(function_response=response))
    assert events[-1].error_code == "ApprovalRefused"


async def test_a_failed_job_is_listed_with_its_reason(client: JobClient, tmp_path: Path) -> None:
    parent = conversation("please", calls(task("fail after: true")), says("It failed."))
    script = write_script(tmp_path, {**parent, "agent": "coordinator"}, *WORKER_SCRIPT)
    made = JobAgent(client, agent="coordinator", model=f"scripted:{script}")

    events = await Chat(made).say(text("please"))

    (listed,) = [
        said
        for event in events
        if event.author == "task" and not event.partial
        for said in texts([event])
    ]
    assert listed.startswith("- ✗ **general-purpose** fail after: true · failed — ")
    assert "the client broke" in listed


async def test_a_failure_is_an_event_with_its_reason(client: JobClient, tmp_path: Path) -> None:
    made = agent(client, tmp_path, says("Done."), verify="false", max_reworks=0)

    events = await Chat(made).say(text("do it"))

    assert events[-1].error_code == "VerificationFailed"


@pytest.mark.filterwarnings("ignore:SequentialAgent is deprecated")
async def test_it_composes_with_agents_of_adk(
    client: JobClient, tmp_path: Path, workspace: Path
) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    team = [
        agent(
            client,
            tmp_path / name,
            shell(f"echo {name} > {name}.txt"),
            says(f"{name} is made."),
            workspace=workspace,
            name=name,
        )
        for name in "xy"
    ]

    events = await Chat(SequentialAgent(name="both", sub_agents=team)).say(text("make"))

    assert {"x is made.", "y is made."} <= set(texts(events))
    assert names(workspace) == ["kept.txt", "x.txt", "y.txt"]


async def test_a_reader_that_leaves_stops_nothing(client: JobClient, tmp_path: Path) -> None:
    made = agent(client, tmp_path, shell("sleep 2"), says("Done."), labels={"of": str(tmp_path)})
    runner = InMemoryRunner(agent=made, app_name="chat")
    await runner.session_service.create_session(app_name="chat", user_id="u", session_id="s")
    message = types.Content(role="user", parts=[text("go")])
    run = runner.run_async(user_id="u", session_id="s", new_message=message)
    async for event in run:
        if event.get_function_calls():
            break
    await run.aclose()

    (record,) = await client.list(labels={"of": str(tmp_path)})
    assert (await client.wait(record.id, 60)).state is JobState.SUCCEEDED
