"""Delegated calls with deferred results: the run ends and is resumed, in any process, with them.

Such a call returns `deferred_result`. While it has no other result the model is not called. The
caller of the agent appends an event with the results (`results_event`) and resumes the run. Nothing
is started before the run has ended, so a call whose result was lost in a crash had no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from google.adk.agents.invocation_context import InvocationContext
from google.adk.events import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from ..dangling_calls import (
    DanglingCall,
    answered,
    insert_before_next_message,
)
from ..middleware import Middleware
from ..prompts import TASKS_ABANDONED

DEFERRED_STATUS = "waiting_for_tasks"

_ARGUMENTS = "later_arguments:"
"""Prefix of the session state's key for the arguments with which a call ran: a person may have
changed those that the model gave."""


class DeferredCall(NamedTuple):
    """A call whose result is deferred."""

    made: DanglingCall
    arguments: dict[str, Any]
    """The arguments with which it ran."""
    notes: dict[str, Any]
    """Further keys for its result, such as a note that a person changed the arguments."""


def deferred_result(tool_context: ToolContext, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the preliminary result of a call, and store the arguments with which it ran."""
    tool_context.state[f"{_ARGUMENTS}{tool_context.function_call_id}"] = dict(arguments)
    return {
        "status": DEFERRED_STATUS,
        "message": "The tasks are under way; their results take the place of this.",
    }


def deferred_calls(events: Iterable[Event]) -> list[DeferredCall]:
    """Return the calls whose results are deferred, in order; of those with one id, the newest."""
    made: dict[str | None, DanglingCall] = {}
    waiting: dict[str | None, DeferredCall] = {}
    for event in events:
        for call in event.get_function_calls():
            made[call.id] = DanglingCall(event, call)
            waiting.pop(call.id, None)
        for response in event.get_function_responses():
            waiting.pop(response.id, None)
            arguments = event.actions.state_delta.get(f"{_ARGUMENTS}{response.id}")
            given = response.response or {}
            # The same status of another tool, such as an MCP server's, comes without arguments.
            is_deferred = response.id in made and given.get("status") == DEFERRED_STATUS
            if is_deferred and arguments is not None:
                own = ("status", "message")
                notes = {name: value for name, value in given.items() if name not in own}
                waiting[response.id] = DeferredCall(made[response.id], arguments, notes)
    return list(waiting.values())


def results_event(results: Sequence[tuple[DeferredCall, Mapping[str, Any]]]) -> Event:
    """Return the event with the results of calls of one reply."""
    event = answered([waiting.made for waiting, _ in results])
    parts = [
        types.Part(
            function_response=types.FunctionResponse(
                id=waiting.made.call.id,
                name=waiting.made.call.name,
                response={**result, **waiting.notes},
            )
        )
        for waiting, result in results
    ]
    event.content = types.Content(role="user", parts=parts)
    return event


class DeferredResults(Middleware):
    """Ends the run while a result is deferred.

    It comes early in the stack, so that the others do nothing to such a session. A deferred call
    of an earlier run, after which the user sent another message, is answered with an error, only in
    the events that this run sees.
    """

    async def before_step(self, context: InvocationContext, request: LlmRequest) -> Iterable[Event]:
        """End the run if a result is deferred."""
        del request
        events, now = context.session.events, context.invocation_id
        for waiting in deferred_calls(events):
            if waiting.made.event.invocation_id == now:
                context.end_invocation = True
            else:
                answer = answered([waiting.made], TASKS_ABANDONED)
                insert_before_next_message(events, waiting.made, answer)
        return ()
