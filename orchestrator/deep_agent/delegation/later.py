"""Delegated calls whose results come later.

The run ends, and goes on in another process with the results.

Such a call answers `later`. The model is not asked while that stands; who runs the agent puts an
event with the results (`results_event`) after it and goes on. Nothing is started before the run has
ended, so a call that lost its answer in a crash has had no effect.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from google.adk.agents.invocation_context import InvocationContext
from google.adk.events import Event
from google.adk.flows.llm_flows._base_llm_processor import BaseLlmRequestProcessor
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from orchestrator.deep_agent.guards.dangling_calls import DanglingCall, answered
from orchestrator.deep_agent.part import Part

LATER_TOOLS = ("task", "tasks")
"""The tools that may answer so; the same words from another tool, say an MCP server's, hold up
nothing."""

LATER_STATUS = "waiting_for_tasks"

_ARGUMENTS = "later_arguments:"
"""Begins the key of the session's state under which a call's arguments are, as they were when it
ran: a person may have changed those that the model gave."""


class LaterCall(NamedTuple):
    """A call whose result is still to come."""

    made: DanglingCall
    arguments: dict[str, Any]
    """What it ran with."""
    notes: dict[str, Any]
    """What else its result says: that a person changed the arguments."""


def later(tool_context: ToolContext, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a call that ran with these arguments, until its result is there."""
    tool_context.state[f"{_ARGUMENTS}{tool_context.function_call_id}"] = dict(arguments)
    return {
        "status": LATER_STATUS,
        "message": "The tasks are under way; their results take the place of this.",
    }


def calls_for_later(events: Iterable[Event]) -> list[LaterCall]:
    """The calls whose results are still to come, in their order.

    Of those with one id the newest counts.
    """
    made: dict[str | None, DanglingCall] = {}
    waiting: dict[str | None, LaterCall] = {}
    for event in events:
        for call in event.get_function_calls():
            made[call.id] = DanglingCall(event, call)
            waiting.pop(call.id, None)
        for response in event.get_function_responses():
            waiting.pop(response.id, None)
            arguments = event.actions.state_delta.get(f"{_ARGUMENTS}{response.id}")
            given = response.response or {}
            is_later = response.name in LATER_TOOLS and given.get("status") == LATER_STATUS
            if response.id in made and arguments is not None and is_later:
                notes = {
                    name: value
                    for name, value in given.items()
                    if name not in ("status", "message")
                }
                waiting[response.id] = LaterCall(made[response.id], arguments, notes)
    return list(waiting.values())


def results_event(results: Sequence[tuple[LaterCall, Mapping[str, Any]]]) -> Event:
    """The event that gives calls of one reply their results."""
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


class LaterResults(Part):
    """Holds the model back while a result is to come.

    Stands early: nothing is done to a held session.
    """

    def request_processors(self) -> Sequence[BaseLlmRequestProcessor]:
        """Before every model call: is there something to wait for?"""
        return (_HoldForResults(),)


class _HoldForResults(BaseLlmRequestProcessor):
    name = "later_results"

    async def run_async(
        self, invocation_context: InvocationContext, llm_request: LlmRequest
    ) -> AsyncGenerator[Event]:
        """No events."""
        del llm_request
        now = invocation_context.invocation_id
        own = (event for event in invocation_context.session.events if event.invocation_id == now)
        if calls_for_later(own):
            invocation_context.end_invocation = True
        return
        yield  # the interface is a generator
