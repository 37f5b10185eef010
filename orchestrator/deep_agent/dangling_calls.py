"""Answers to tool calls without a result, because of a crash, a cancellation or a new message.

ADK silently removes such a call from the request or, if it waits for a later result, sends it
without one, which providers reject. Here each such call is answered. Where its run is resumed
(`answered`), the answer is an event of the session. Where a new message of the user followed, the
answer is inserted right before that message, only in the events that the run sees: that needs no
store, works with any Runner, and leaves pending what is still pending elsewhere.

A call that waits for an approval is not answered until the user sends another message. From then on
it counts as not executed, and a later approval is rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from google.adk.agents.invocation_context import InvocationContext
from google.adk.events import Event
from google.adk.flows.llm_flows.functions import REQUEST_CONFIRMATION_FUNCTION_CALL_NAME
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from .approval import AWAITING, pending_approvals
from .messages import is_request, list_parts
from .middleware import Middleware
from .prompts import CALL_INTERRUPTED, CALL_NOT_APPROVED, CALL_PENDING
from .tool import error_result
from .unusable_replies import PLACEHOLDERS

FRAMEWORK_PREFIX = "adk_"
"""Prefix of the names of ADK's own requests to people (confirmation, credentials, input), which are
calls too."""


def is_frameworks(call: types.FunctionCall) -> bool:
    """Return whether a call is one of ADK's own requests."""
    return str(call.name).startswith(FRAMEWORK_PREFIX)


class DanglingCall(NamedTuple):
    """A call without a result."""

    event: Event
    """The reply with the call."""
    call: types.FunctionCall


def unanswered_calls(events: Iterable[Event]) -> list[DanglingCall]:
    """Return the calls that were running when the events end, in order.

    Calls that wait for a person or a long-running tool are not among them.
    """
    return [dangling for dangling in _open_calls(events) if not _waits(dangling)]


def answered(calls: Sequence[DanglingCall], message: str = CALL_INTERRUPTED) -> Event:
    """Return the event that answers calls of one reply with an error.

    Args:
        calls: Calls of the same reply; at least one.
        message: The error, for the model.
    """
    caller = calls[0].event
    parts = [
        types.Part(
            function_response=types.FunctionResponse(
                id=call.id,
                name=call.name,
                response=error_result(_placeholder_problem(call) or message),
            )
        )
        for _, call in calls
    ]
    return Event(
        author=caller.author,
        invocation_id=caller.invocation_id,
        branch=caller.branch,
        isolation_scope=caller.isolation_scope,
        content=types.Content(role="user", parts=parts),
    )


class DanglingCalls(Middleware):
    """Answers the open calls of earlier runs before each model call."""

    async def before_step(self, context: InvocationContext, request: LlmRequest) -> Iterable[Event]:
        """Insert the answers into the events that this run sees.

        ADK replays the open calls of this run itself.
        """
        del request
        events, now = context.session.events, context.invocation_id
        if any(event.invocation_id != now for event in events):
            _answer_earlier(events, now)
        return ()

    async def before_tool(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Reject an approval that comes after another message of the user."""
        del tool, args
        if tool_context.tool_confirmation is None:
            return None
        events = tool_context.session.events
        call_id = tool_context.function_call_id
        asked = (
            index
            for index, event in enumerate(events)
            if any(call.id == call_id for call in event.get_function_calls())
        )
        index = next(asked, None)
        if index is None or _next_message(events, index) is None:
            return None
        return error_result(CALL_NOT_APPROVED)


def _answer_earlier(events: list[Event], invocation_id: str) -> None:
    for dangling in [*_open_calls(events), *_approved_calls(events)]:
        if dangling.event.invocation_id == invocation_id:
            continue
        answer = _earlier_answer(dangling)
        if answer is not None:
            insert_before_next_message(events, dangling, answer)


def insert_before_next_message(events: list[Event], call: DanglingCall, answer: Event) -> None:
    """Insert the answer to a call before the message that began another run, if there is one.

    Args:
        events: The events that a run sees.
        call: A call of an earlier run.
        answer: Its answer.
    """
    caller = next(index for index, event in enumerate(events) if event is call.event)
    at = _next_message(events, caller)
    if at is not None:
        # Summaries replace ranges of time, and the answer belongs to its call.
        answer.timestamp = events[at - 1].timestamp
        events.insert(at, answer)


def _earlier_answer(dangling: DanglingCall) -> Event | None:
    call = dangling.call
    if call.name == REQUEST_CONFIRMATION_FUNCTION_CALL_NAME:
        original = (call.args or {}).get("originalFunctionCall")
        if not isinstance(original, dict):
            return None
        asked = types.FunctionCall(id=original.get("id"), name=original.get("name"))
        return answered([DanglingCall(dangling.event, asked)], CALL_NOT_APPROVED)
    if is_frameworks(call):
        return None
    return answered([dangling], CALL_PENDING if _waits(dangling) else CALL_INTERRUPTED)


def _placeholder_problem(call: types.FunctionCall) -> str | None:
    """Return what a placeholder call says was wrong with its reply; None for any other call."""
    return str((call.args or {}).get("problem")) if call.name in PLACEHOLDERS else None


def _open_calls(events: Iterable[Event]) -> list[DanglingCall]:
    """Return the calls that no later event answers; of calls with the same id, the newest."""
    found: dict[str, DanglingCall] = {}
    for event in events:
        for part in list_parts(event):
            if part.function_call is not None and part.function_call.id:
                found[part.function_call.id] = DanglingCall(event, part.function_call)
            elif part.function_response is not None and part.function_response.id:
                found.pop(part.function_response.id, None)
    return list(found.values())


def _approved_calls(events: Sequence[Event]) -> list[DanglingCall]:
    """Return the calls that a person decided about, and that have no result since."""
    pending = {request.call_id for request in pending_approvals(events)}
    made: dict[str | None, DanglingCall] = {}
    found: dict[str | None, DanglingCall] = {}
    for event in events:
        made |= {call.id: DanglingCall(event, call) for call in event.get_function_calls()}
        for response in event.get_function_responses():
            found.pop(response.id, None)
            is_placeholder = (response.response or {}).get("status") == AWAITING["status"]
            if is_placeholder and response.id in made and response.id not in pending:
                found[response.id] = made[response.id]
    return list(found.values())


def _waits(dangling: DanglingCall) -> bool:
    """Return whether a person or a long-running tool will give the result later."""
    call = dangling.call
    is_long_running = call.id in (dangling.event.long_running_tool_ids or ())
    return is_long_running or is_frameworks(call)


def _next_message(events: Sequence[Event], index: int) -> int | None:
    """Return the index of the user message that began another run after an event, or None."""
    asked_in = events[index].invocation_id
    later = range(index + 1, len(events))
    messages = (at for at in later if is_request(events[at]))
    return next((at for at in messages if events[at].invocation_id != asked_in), None)
