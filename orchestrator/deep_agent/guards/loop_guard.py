"""Ends the run of a model that makes the same call again and again, after warnings.

The calls are counted in the session's events, so the count survives a restart. A reply with any
other call restarts the count, so an agent may run its tests after every edit.
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

from fanout.orchestrator.deep_agent.guards.dangling_calls import is_frameworks
from fanout.orchestrator.deep_agent.messages import is_request
from fanout.orchestrator.deep_agent.middleware import Middleware
from fanout.orchestrator.deep_agent.prompts import SAME_CALL
from fanout.orchestrator.deep_agent.tool import error_result, is_polling

MAX_SAME_CALLS = 4
"""How often in a row the same call with the same arguments is executed; after that it gets only a
warning. Looking again after a failure, or at a file that is still growing, is ordinary work."""

MAX_REPEATED_CALLS = 8
"""After this many the run ends: a model that ignores four warnings wastes its budget."""

REPEATED_CALL = "REPEATED_CALL"
"""The error code of a run that the guard ended."""

Signature = tuple[str, str]
"""A call's tool and its arguments as canonical JSON."""


class LoopGuard(Middleware):
    """Rejects repeated calls, and ends the run after too many; polling tools are exempt."""

    async def before_tool(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Reject a call that has been made too often in a row."""
        del args  # another part may have changed them; what the model asked for counts
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
        """Return an error in place of the model's reply after too many repeated calls."""
        events, agent = callback_context.session.events, callback_context.agent_name
        last = next(_replies(events, agent), [])
        for call in {_signature(call): call for call in last}.values():
            tool = llm_request.tools_dict.get(str(call.name))
            if tool is not None and is_polling(tool):
                continue
            if _times_in_a_row(_replies(events, agent), call.id) >= MAX_REPEATED_CALLS:
                return LlmResponse(
                    error_code=REPEATED_CALL,
                    error_message=f"The agent made the same call of {call.name} with the same "
                    f"arguments {MAX_REPEATED_CALLS} times in a row, in spite of warnings, and was "
                    "stopped.",
                )
        return None


def _replies(events: Sequence[Event], agent: str) -> Iterator[list[types.FunctionCall]]:
    """Yield the calls of each of the agent's replies, newest first, back to the user's message."""
    for event in reversed(events):
        if is_request(event):
            return
        calls = [call for call in event.get_function_calls() if not is_frameworks(call)]
        if calls and event.author == agent:
            yield calls


def _times_in_a_row(replies: Iterator[list[types.FunctionCall]], call_id: str | None) -> int:
    """Return how often in a row a call was made up to the given one; 0 if no reply has it."""
    signature: Signature | None = None
    kinds: frozenset[Signature] = frozenset()
    count = 0
    for calls in replies:
        signatures = [_signature(call) for call in calls]
        if signature is None:
            at = next((index for index, call in enumerate(calls) if call.id == call_id), None)
            if at is None:
                continue  # made in an earlier reply, and approved since
            signature, kinds = signatures[at], frozenset(signatures)
            count = signatures[: at + 1].count(signature)
        elif frozenset(signatures) == kinds:
            count += signatures.count(signature)
        else:
            break
    return count


def _signature(call: types.FunctionCall) -> Signature:
    return str(call.name), json.dumps(
        call.args or {}, sort_keys=True, ensure_ascii=False, default=str
    )
