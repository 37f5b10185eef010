"""The results of an agent's tools, in the form in which sessions, records and services take them.

A tool may return any value of Python, and ADK stores it as it is: what JSON cannot hold would end
the run later, when its session is written or its next request is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.adk.events import Event
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from ..json_values import NotJson, json_value
from ..valid_text import clean
from .messages import event_with_call
from .middleware import Middleware
from .models.replies import CLEANED_CALLS
from .prompts import REPLACED_CHARACTERS
from .tool import error_result

MAX_MEDIA_DEPTH = 2
"""ADK takes media out of a result, of its lists, and of the lists in these."""


class JsonResults(Middleware):
    """Makes each result JSON, and adds a note if its call came with replaced characters."""

    async def after_tool(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, tool_response: Any
    ) -> Any:
        """Return the result as JSON."""
        del args
        if isinstance(tool_response, types.FunctionResponse):
            return None  # ADK takes the result out of it
        result = _json_result(tool.name, tool_response, is_media)
        if isinstance(result, dict) and _is_cleaned_call(tool_context):
            notes = [result.get("note"), REPLACED_CHARACTERS]
            result = {**result, "note": " ".join(str(note) for note in notes if note)}
        return result

    async def after_tools(
        self, results: Event, tools: Mapping[str, BaseTool], state: Mapping[str, Any]
    ) -> None:
        """Clean what the tools wrote into the state, and results that only a plugin saw."""
        del tools, state
        results.actions.state_delta = dict(clean(results.actions.state_delta))
        for answer in results.get_function_responses():
            answer.response = _json_result(answer.name or "", answer.response)


def is_media(value: Any, depth: int) -> bool:
    """Return whether a value at a depth of a result is media that ADK takes out of it."""
    is_part = depth <= MAX_MEDIA_DEPTH and isinstance(value, types.Part)
    return is_part and bool(value.inline_data or value.file_data)


def _json_result(tool: str, result: Any, *keeps: Any) -> Any:
    try:
        return json_value(result, *keeps)
    except NotJson as reason:
        return error_result(f"{tool} returned what cannot be passed on: {reason}.")


def _is_cleaned_call(context: ToolContext) -> bool:
    event = event_with_call(context.session.events, str(context.function_call_id))
    positions = (event.custom_metadata or {}).get(CLEANED_CALLS) if event is not None else None
    if event is None or not positions:
        return False
    ids = [call.id for call in event.get_function_calls()]
    return any(ids[each] == context.function_call_id for each in positions if each < len(ids))
