"""A model that makes the same call again and again is told so, then its run is ended.

The row is read from the session's events, so it goes on where it was after a restart. It is made of
replies: one that calls anything else begins a new row, so that an agent may run its tests after
every edit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.events import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from orchestrator.deep_agent.guards.dangling_calls import FRAMEWORK_PREFIX
from orchestrator.deep_agent.part import Part
from orchestrator.deep_agent.prompts import SAME_CALL
from orchestrator.deep_agent.tool import error_result, is_polling

MAX_SAME_CALLS = 4
"""So often in a row the same call with the same arguments is carried out; after that only a warning
comes. Looking again after a failure, or at something that is still growing, is ordinary work."""

MAX_REPEATED_CALLS = 8
"""Then the run is ended: a model that four warnings did not move spends its budget for nothing."""

REPEATED_CALL = "REPEATED_CALL"
"""The error code of a run that was ended so."""

Signature = tuple[str, str]
"""A call's tool and its arguments as canonical JSON."""


class LoopGuard(Part):
    """Answers a repeated call in the tool's stead; tools that are there for polling are free."""

    async def before_tool(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Refuse the call when it has been made too often in a row."""
        del args  # another part may have changed them; the row is about what the model asked for
        if is_polling(tool):
            return None
        replies = _replies(tool_context.session.events, tool_context.agent_name)
        count = _times_in_a_row(replies, tool_context.function_call_id)
        if count <= MAX_SAME_CALLS:
            return None
        return error_result(SAME_CALL.format(tool=tool.name, count=count, most=MAX_REPEATED_CALLS))

    async def before_model(
        self, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """End the run in the model's stead when warnings did not help."""
        events, agent = callback_context.session.events, callback_context.agent_name
        last = next(_replies(events, agent), [])
        for call in {_signature(call): call for call in last}.values():
            tool = llm_request.tools_dict.get(str(call.name))
            is_free = tool is not None and is_polling(tool)
            if (
                not is_free
                and _times_in_a_row(_replies(events, agent), call.id) >= MAX_REPEATED_CALLS
            ):
                return LlmResponse(
                    error_code=REPEATED_CALL,
                    error_message=f"The agent made the same call of {call.name} with the same arguments "
                    f"{MAX_REPEATED_CALLS} times in a row, in spite of warnings, and was stopped.",
                )
        return None


def _replies(events: Sequence[Event], agent: str) -> Iterator[list[types.FunctionCall]]:
    """What the agent's replies call, newest first, back to the user's last message."""
    for event in reversed(events):
        if event.author == "user" and event.content and not event.get_function_responses():
            return
        calls = [
            call
            for call in event.get_function_calls()
            if not str(call.name).startswith(FRAMEWORK_PREFIX)
        ]
        if calls and event.author == agent:
            yield calls


def _times_in_a_row(replies: Iterator[list[types.FunctionCall]], call_id: str | None) -> int:
    """Which time in a row the call of that id is; 0 when no reply has it."""
    signature: Signature | None = None
    kinds: frozenset[Signature] = frozenset()
    count = 0
    for calls in replies:
        signatures = [_signature(call) for call in calls]
        if signature is None:
            place = next((index for index, call in enumerate(calls) if call.id == call_id), None)
            if place is None:
                continue  # made in an earlier reply, and approved since
            signature, kinds = signatures[place], frozenset(signatures)
            count = signatures[: place + 1].count(signature)
        elif frozenset(signatures) == kinds:
            count += signatures.count(signature)
        else:
            break
    return count


def _signature(call: types.FunctionCall) -> Signature:
    return str(call.name), json.dumps(
        call.args or {}, sort_keys=True, ensure_ascii=False, default=str
    )
