"""Calls that nothing answered.

A crash, an abort or a cancel came first, or the user spoke before them.

ADK takes such a call out of the request without a word, or, when it waits for a later answer, sends
it without a result, which providers refuse. Here each one is answered: where its run goes on
(`answered`), the answer becomes an event of the session; where a new message of the user followed,
it is put into the session as this run sees it, right before that message. The second needs no
store, so it holds in any Runner, and what is still pending elsewhere stays pending.

A call that waits for an approval is left alone until the user says something else. From then on it
counts as not carried out, and an approval that comes later is refused.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, NamedTuple

from google.adk.agents.invocation_context import InvocationContext
from google.adk.events import Event
from google.adk.flows.llm_flows._base_llm_processor import BaseLlmRequestProcessor
from google.adk.flows.llm_flows.functions import REQUEST_CONFIRMATION_FUNCTION_CALL_NAME
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from orchestrator.deep_agent.part import Part
from orchestrator.deep_agent.prompts import CALL_INTERRUPTED, CALL_NOT_APPROVED, CALL_PENDING
from orchestrator.deep_agent.tool import error_result

FRAMEWORK_PREFIX = "adk_"
"""ADK's own requests to people (confirmation, credentials, input) are calls of names that begin
so."""


class DanglingCall(NamedTuple):
    """A call without an answer."""

    event: Event
    """The reply that made it."""
    call: types.FunctionCall


def unanswered_calls(events: Iterable[Event]) -> list[DanglingCall]:
    """The calls that were in flight when the events end, in their order.

    Not those that wait for somebody.
    """
    return [dangling for dangling in _open_calls(events) if not _waits(dangling)]


def answered(calls: Sequence[DanglingCall], message: str = CALL_INTERRUPTED) -> Event:
    """The event that answers calls of one reply in the tools' stead."""
    caller = calls[0].event
    parts = [_response(dangling.call.id, dangling.call.name, message) for dangling in calls]
    return Event(
        author=caller.author,
        invocation_id=caller.invocation_id,
        branch=caller.branch,
        isolation_scope=caller.isolation_scope,
        content=types.Content(role="user", parts=parts),
    )


class DanglingCalls(Part):
    """Answers what an earlier run left open, before the model is asked."""

    def request_processors(self) -> Sequence[BaseLlmRequestProcessor]:
        """One step before the contents are made."""
        return (_AnswerEarlierCalls(),)

    async def before_tool(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Refuse an approval that comes after the user went on without it."""
        del tool, args
        if tool_context.tool_confirmation is None:
            return None
        events = tool_context.session.events
        asked = (
            index
            for index, event in enumerate(events)
            if _calls(event, tool_context.function_call_id)
        )
        index = next(asked, None)
        if index is None or _next_message(events, index) is None:
            return None
        return error_result(CALL_NOT_APPROVED)


class _AnswerEarlierCalls(BaseLlmRequestProcessor):
    name = "dangling_calls"

    async def run_async(
        self, invocation_context: InvocationContext, llm_request: LlmRequest
    ) -> AsyncGenerator[Event, None]:
        """Put the answers into the events that this run sees.

        What is open in this run is ADK's to replay.
        """
        del llm_request
        events = invocation_context.session.events
        now = invocation_context.invocation_id
        if any(event.invocation_id != now for event in events):
            _answer_earlier(events, now)
        return
        yield  # the interface is a generator


def _answer_earlier(events: list[Event], invocation_id: str) -> None:
    for dangling in _open_calls(events):
        if dangling.event.invocation_id == invocation_id:
            continue
        caller = next(index for index, event in enumerate(events) if event is dangling.event)
        place = _next_message(events, caller)
        answer = _earlier_answer(dangling)
        if place is not None and answer is not None:
            answer.timestamp = events[
                place - 1
            ].timestamp  # summaries cover times: it belongs to the call
            events.insert(place, answer)


def _earlier_answer(dangling: DanglingCall) -> Event | None:
    call = dangling.call
    if call.name == REQUEST_CONFIRMATION_FUNCTION_CALL_NAME:
        original = (call.args or {}).get("originalFunctionCall")
        if not isinstance(original, dict):
            return None
        asked = types.FunctionCall(id=original.get("id"), name=original.get("name"))
        return answered([DanglingCall(dangling.event, asked)], CALL_NOT_APPROVED)
    if str(call.name).startswith(FRAMEWORK_PREFIX):
        return None
    return answered([dangling], CALL_PENDING if _waits(dangling) else CALL_INTERRUPTED)


def _open_calls(events: Iterable[Event]) -> list[DanglingCall]:
    """The calls that no later event answers.

    A model may use an id again, then the newer call counts.
    """
    found: dict[str, DanglingCall] = {}
    for event in events:
        for part in (event.content and event.content.parts) or ():
            if part.function_call is not None and part.function_call.id:
                found[part.function_call.id] = DanglingCall(event, part.function_call)
            elif part.function_response is not None and part.function_response.id:
                found.pop(part.function_response.id, None)
    return list(found.values())


def _waits(dangling: DanglingCall) -> bool:
    """Whether an answer is to come later.

    From a person, or from what a long-running tool started.
    """
    call = dangling.call
    is_long_running = call.id in (dangling.event.long_running_tool_ids or ())
    return is_long_running or str(call.name).startswith(FRAMEWORK_PREFIX)


def _next_message(events: Sequence[Event], index: int) -> int | None:
    """Where the user's next message stands that began another run, after the event at `index`."""
    asked_in = events[index].invocation_id
    for place in range(index + 1, len(events)):
        event = events[place]
        is_message = event.author == "user" and event.content and not event.get_function_responses()
        if is_message and event.invocation_id != asked_in:
            return place
    return None


def _calls(event: Event, call_id: str | None) -> bool:
    return any(call.id == call_id for call in event.get_function_calls())


def _response(call_id: str | None, name: str | None, message: str) -> types.Part:
    return types.Part(
        function_response=types.FunctionResponse(
            id=call_id, name=name, response=error_result(message)
        )
    )
