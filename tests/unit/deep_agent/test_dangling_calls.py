"""A call that nothing answered is answered before the next request, and the model sees that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.apps import App
from google.adk.events import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.genai import types

from fanout.orchestrator.deep_agent.create import create_deep_agent, create_deep_app
from fanout.orchestrator.deep_agent.dangling_calls import answered, unanswered_calls
from fanout.orchestrator.deep_agent.prompts import CALL_INTERRUPTED, CALL_NOT_APPROVED, CALL_PENDING
from tests.integration.scripts import call
from tests.unit.deep_agent.running import scripted

Heard = list[tuple[str, str | None]]
"""What stands in a request, in order: kind and text, or the name of a call, or the message of a
result."""


class Requests(BasePlugin):
    """Keeps what the model was asked with."""

    def __init__(self) -> None:
        super().__init__(name="requests")
        self.heard: list[Heard] = []

    async def before_model_callback(
        self, *, callback_context: Any, llm_request: LlmRequest
    ) -> None:
        del callback_context
        self.heard.append([told for content in llm_request.contents for told in _told(content)])


def _told(content: types.Content) -> Heard:
    told: Heard = []
    for part in content.parts or []:
        if part.function_call:
            told.append(("call", part.function_call.name))
        elif part.function_response:
            response = part.function_response.response or {}
            told.append(("result", str(response.get("error", response.get("message", response)))))
        else:
            told.append((str(content.role), part.text))
    return told


class Conversation:
    """A deep agent with tools, whose session outlives its runs."""

    def __init__(self, *replies: dict[str, Any], tools: list[Any], bare: bool = False) -> None:
        self.requests = Requests()
        agent = create_deep_agent(scripted(replies), tools)
        app = create_deep_app(agent, name="talk", plugins=[self.requests])
        if bare:
            app = App(name="talk", root_agent=agent, plugins=[self.requests])
        self.app = app
        self.sessions = InMemorySessionService()

    async def begin(self) -> Conversation:
        await self.sessions.create_session(app_name="talk", user_id="u", session_id="s")
        return self

    async def say(self, *parts: types.Part, abort: asyncio.Event | None = None) -> list[Event]:
        """One run to its end."""
        runner = Runner(app=self.app, session_service=self.sessions)
        message = types.Content(role="user", parts=list(parts))
        return [
            event
            async for event in runner.run_async(
                user_id="u", session_id="s", new_message=message, abort_signal=abort
            )
        ]

    @property
    def heard(self) -> Heard:
        """What the model was asked with last."""
        return self.requests.heard[-1]


def text(words: str) -> types.Part:
    return types.Part(text=words)


def answer(call_id: str, name: str, **response: Any) -> types.Part:
    return types.Part(
        function_response=types.FunctionResponse(id=call_id, name=name, response=response)
    )


class Hanging:
    """A tool that never answers."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def hang(self) -> dict[str, Any]:
        """Never answer."""
        self.begun.set()
        await asyncio.Event().wait()
        return {}


@pytest.mark.parametrize("bare", [False, True], ids=["our app", "any runner"])
async def test_after_a_cancelled_run_the_model_learns_that_its_calls_were_interrupted(
    bare: bool,
) -> None:
    tool = Hanging()
    talk = await Conversation(
        {"text": "wait", "calls": [call("hang"), call("hang")]},
        {"text": "I see."},
        {"text": "Still here."},
        tools=[tool.hang],
        bare=bare,
    ).begin()
    run = asyncio.create_task(talk.say(text("go")))
    await tool.begun.wait()
    run.cancel()
    await asyncio.wait({run})
    await talk.say(text("what happened?"))

    interrupted = [("result", CALL_INTERRUPTED)] * 2
    begun = [("user", "go"), ("model", "wait"), ("call", "hang"), ("call", "hang"), *interrupted]
    assert talk.heard == [*begun, ("user", "what happened?")]

    await talk.say(text("and now?"))
    told = [*begun, ("user", "what happened?"), ("model", "I see."), ("user", "and now?")]
    assert talk.heard == told


async def test_an_aborted_run_is_sealed_once() -> None:
    tool, abort = Hanging(), asyncio.Event()
    talk = await Conversation(
        {"calls": [call("hang")]}, {"text": "I see."}, tools=[tool.hang]
    ).begin()
    run = asyncio.create_task(talk.say(text("go"), abort=abort))
    await tool.begun.wait()
    abort.set()
    await run
    await talk.say(text("what happened?"))

    results = [told for kind, told in talk.heard if kind == "result"]
    assert len(results) == 1
    assert "aborted" in str(results[0])


def start() -> None:
    """Start something that answers later."""


async def test_a_pending_call_is_answered_for_the_time_being_and_its_result_still_comes() -> None:
    talk = await Conversation(
        {"calls": [call("start")]},
        {"text": "It is not there yet."},
        {"text": "Here it is."},
        tools=[LongRunningFunctionTool(start)],
    ).begin()
    events = await talk.say(text("go"))
    pending = next(made for event in events for made in event.get_function_calls())
    await talk.say(text("how is it going?"))
    expected = [
        ("user", "go"),
        ("call", "start"),
        ("result", CALL_PENDING),
        ("user", "how is it going?"),
    ]
    assert talk.heard == expected

    await talk.say(answer(str(pending.id), "start", found="it"))
    assert talk.heard[:3] == [("user", "go"), ("call", "start"), ("result", "{'found': 'it'}")]


class Deploying:
    def __init__(self) -> None:
        self.done = 0

    async def deploy(self) -> dict[str, Any]:
        """Deploy."""
        self.done += 1
        return {"message": "deployed"}

    @property
    def tool(self) -> BaseTool:
        return FunctionTool(self.deploy, require_confirmation=True)


def asked(events: list[Event]) -> types.FunctionCall:
    """The request for an approval among the events."""
    calls = (made for event in events for made in event.get_function_calls())
    return next(made for made in calls if made.name == "adk_request_confirmation")


async def test_a_call_that_waits_for_an_approval_is_left_alone() -> None:
    deploying = Deploying()
    talk = await Conversation(
        {"calls": [call("deploy")]}, {"text": "Out."}, tools=[deploying.tool]
    ).begin()
    request = asked(await talk.say(text("go")))
    await talk.say(answer(str(request.id), str(request.name), confirmed=True))

    assert deploying.done == 1
    assert talk.heard == [("user", "go"), ("call", "deploy"), ("result", "deployed")]


async def test_an_approval_is_void_once_the_user_has_gone_on_without_it() -> None:
    deploying = Deploying()
    talk = await Conversation(
        {"calls": [call("deploy"), call("read_todos")]},
        {"text": "Not deployed."},
        {"text": "It was too late."},
        tools=[deploying.tool],
    ).begin()
    request = asked(await talk.say(text("go")))
    await talk.say(text("never mind"))
    assert ("result", CALL_NOT_APPROVED) in talk.heard
    assert talk.heard[-1] == ("user", "never mind")
    assert [kind for kind, _ in talk.heard] == ["user", "call", "call", "result", "result", "user"]

    await talk.say(answer(str(request.id), str(request.name), confirmed=True))
    assert deploying.done == 0
    assert ("result", CALL_NOT_APPROVED) in talk.heard


def reply(*calls: tuple[str, str], waits_for: tuple[str, ...] = ()) -> Event:
    parts = [
        types.Part(function_call=types.FunctionCall(id=call_id, name=name, args={}))
        for call_id, name in calls
    ]
    content = types.Content(role="model", parts=parts)
    return Event(
        author="a", invocation_id="i", content=content, long_running_tool_ids=set(waits_for)
    )


def test_what_was_in_flight_is_found_and_what_waits_for_somebody_is_not() -> None:
    done = Event(
        author="a",
        invocation_id="i",
        content=types.Content(role="user", parts=[answer("1", "ls"), answer("2", "ls")]),
    )
    asks = reply(("9", "adk_request_confirmation"), ("8", "start"), waits_for=("9", "8"))
    events = [reply(("1", "ls"), ("2", "ls")), done, reply(("2", "rm"), ("3", "ls")), asks]
    found = unanswered_calls(events)

    assert [(dangling.call.id, dangling.call.name) for dangling in found] == [
        ("2", "rm"),
        ("3", "ls"),
    ]
    event = answered(found)
    assert [response.id for response in event.get_function_responses()] == ["2", "3"]
    assert (event.author, event.invocation_id) == ("a", "i")
    assert unanswered_calls([*events, event]) == []
