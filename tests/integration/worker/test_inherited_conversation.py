"""Tasks that inherit their caller's conversation, seen at the model's service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.adk.runners import InMemoryRunner
from google.genai import types

from fanout import TaskToolset, create_deep_agent
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.deep_agent import DirectoryBackend
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.jobs.store.journal import EventType
from tests.builders import make_spec
from tests.integration.models.answering_server import AnsweringServer, answering_server, messages
from tests.integration.models.model_server import environment
from tests.integration.models.wires import call, text
from tests.integration.worker.children import answers
from tests.services import Installation, Installer
from tests.waits import eventually

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]

MODELS = ("gemini-2.5-flash", "chat/any", "responses/gpt-5", "claude-sonnet-4-5")
"""One for each wire."""
DONE = [text("Finished.\n\n## Summary\nDone as asked.")]
GOAL = "the goal of the person"
LEAD = """
name: lead
description: Delegates.
instruction: Do it.
subagents: [general-purpose, remote]
"""
REMOTE = """
name: remote
description: Works at another service.
a2a: {url: "http://127.0.0.1:9/"}
"""


def task(description: str, **more: Any) -> dict[str, Any]:
    return call("task", description=description, **more)


INHERITS: dict[str, Any] = {"inherit": "conversation"}
COPY = "the part of a copy"
OTHER = "the part of another"
GRANDCHILD = "the part of a part"
STARTED = "the part that is started"
ALONE = "the part without more"
ABROAD = "the part for another service"


def begins(*made: dict[str, Any]) -> tuple[tuple[str, list[dict[str, Any]]], ...]:
    """The rules of a lead that looks at its files, makes these calls and ends."""
    return (
        (GOAL, [text("I look first."), call("ls", path="/workspace")]),
        ("seen.txt", [text("I share it."), *made]),
    )


NESTED = [text("I share as well."), task(GRANDCHILD, **INHERITS)]
RULES = {
    "copy": (*begins(task(COPY, **INHERITS)), (COPY, DONE)),
    "all": (
        *begins(
            task(COPY, **INHERITS),
            task(OTHER, subagent_type="general-purpose", **INHERITS),
            call("tasks", tasks=[{"description": ALONE}, {"description": GRANDCHILD, **INHERITS}]),
            call("start_task", description=STARTED, **INHERITS),
            task(ABROAD, subagent_type="remote", **INHERITS),
        ),
        (GRANDCHILD, DONE),
        (COPY, NESTED),
        *((part, DONE) for part in (OTHER, STARTED, ALONE)),
    ),
}
ENDS = ("Done as asked", DONE)


@pytest.fixture(params=[("copy", MODELS[0])], ids=str)
def server(request: pytest.FixtureRequest) -> Iterator[AnsweringServer]:
    rules, model = request.param
    with answering_server(*RULES[rules], ENDS) as made:
        made.model = model
        yield made


@pytest.fixture
def place(install: Installer, server: AnsweringServer) -> Installation:
    settings = environment(server, "none")
    agents = {"lead": LEAD, "remote": REMOTE}
    settings |= {"FANOUT_MODEL": server.model, "FANOUT_WORKER__LEASE_SECONDS": "6"}
    return install(agents=agents, workers=1, **settings)


def project(place: Installation) -> Path:
    """A folder with a file."""
    folder = place.folder / "project"
    folder.mkdir()
    (folder / "seen.txt").write_text("seen")
    return folder


async def run(client: JobClient, place: Installation) -> str:
    """Run the goal, and return the job's id."""
    result = await client.run(make_spec(GOAL, agent="lead"), workspace=project(place))
    assert result.success, result
    return result.job_id


def cached(request: dict[str, Any]) -> dict[str, Any]:
    """A request without the marks of what is to be cached, which are no part of it."""
    return json.loads(json.dumps(request), object_hook=_unmarked)


def _unmarked(value: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in value.items() if name != "cache_control"}


def assert_begins_with(longer: dict[str, Any], begun: dict[str, Any]) -> None:
    """Compare what a provider's cache compares: all but the messages, and the first messages."""
    longer, begun = cached(longer), cached(begun)
    first = messages(begun)
    assert json.dumps(messages(longer)[: len(first)]) == json.dumps(first)
    rest = {name: value for name, value in begun.items() if value is not first}
    assert json.dumps({name: longer[name] for name in rest}) == json.dumps(rest)


@pytest.mark.parametrize("server", [("copy", model) for model in MODELS], indirect=True, ids=MODELS)
async def test_a_childs_request_begins_with_its_parents_byte_for_byte(
    client: JobClient, place: Installation, server: AnsweringServer
) -> None:
    await run(client, place)
    (own,), (childs,) = server.asked("seen.txt"), server.asked(COPY)
    assert_begins_with(childs, own)
    (after,) = server.asked("Done as asked")
    assert len(messages(after)) > len(messages(own))


@pytest.mark.parametrize("server", [("all", "claude-sonnet-4-5")], indirect=True, ids=str)
async def test_each_way_to_delegate_can_hand_the_conversation_down(
    client: JobClient, place: Installation, server: AnsweringServer
) -> None:
    job_id = await run(client, place)
    (own,), (copys,), (others,) = map(server.asked, ("seen.txt", COPY, OTHER))
    assert_begins_with(copys, own)
    assert_begins_with(server.asked(STARTED)[0], own)
    # Another agent has another instruction and other tools, but the same messages.
    assert others["system"] != own["system"]
    first = messages(cached(own))
    assert messages(cached(others))[: len(first)] == first
    # Of the two grandchildren's requests one is the lead's child, the other the copy's.
    lengths = sorted(len(messages(one)) for one in server.asked(GRANDCHILD))
    assert lengths[0] == len(messages(copys)) < lengths[1]
    for one in server.asked(GRANDCHILD):
        assert_begins_with(one, own)
    assert_begins_with(max(server.asked(GRANDCHILD), key=lambda one: len(messages(one))), copys)
    (alone,) = server.asked(ALONE)
    assert len(messages(alone)) == 1
    assert GOAL not in json.dumps(alone)
    refused = [one for one in await answers(client, job_id) if one["status"] == "error"]
    (error,) = [one["error"] for one in refused]
    assert error.startswith("remote works at another service, which is given no conversation")
    events = [event async for event in client.events(job_id, follow=False)]
    children = [one for one in events if one.type is EventType.CHILD_SUBMITTED]
    assert children
    assert GOAL not in str([one.data for one in children])


@pytest.mark.parametrize("server", [("copy", MODELS[1])], indirect=True, ids=str)
async def test_after_a_killed_worker_a_child_begins_with_the_same_messages(
    client: JobClient, place: Installation, server: AnsweringServer
) -> None:
    server.held = COPY
    running = asyncio.create_task(run(client, place))
    await eventually(lambda: server.asked(COPY))
    place.workers[0].kill()
    server.may_go.set()
    place.start_worker()
    await running
    before, after = server.asked(COPY)
    assert json.dumps(before) == json.dumps(after)
    assert_begins_with(after, server.asked("seen.txt")[0])


async def test_a_programs_agent_hands_its_conversation_down(
    client: JobClient,
    place: Installation,
    server: AnsweringServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment(server, "none").items():
        monkeypatch.setenv(name, value)
    folder = project(place)
    agent = create_deep_agent(
        server.model,
        [TaskToolset(client, folder)],
        instruction="You delegate.",
        backend=DirectoryBackend(folder),
    )
    runner = InMemoryRunner(agent=agent, app_name="program")
    session = await runner.session_service.create_session(app_name="program", user_id="person")
    goal = types.Content(role="user", parts=[types.Part(text=GOAL)])
    async for _ in runner.run_async(user_id="person", session_id=session.id, new_message=goal):
        pass
    (own,), (childs,) = server.asked("seen.txt"), server.asked(COPY)
    first = messages(cached(own))
    assert messages(cached(childs))[: len(first)] == first
    assert len(server.asked("Done as asked")) == 1


async def test_a_job_of_a_program_has_no_conversation_to_inherit(client: JobClient) -> None:
    with pytest.raises(InvalidJob, match="has a conversation to inherit"):
        await client.submit(make_spec("anything", inherit="conversation"))
