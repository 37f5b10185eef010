"""Keeps text that no encoding can hold out of a conversation: of users, models and tools."""

from __future__ import annotations

from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext

from fanout.orchestrator.deep_agent.messages import event_with_call
from fanout.orchestrator.deep_agent.middleware import Middleware
from fanout.orchestrator.deep_agent.models.replies import (
    CLEANED_CALLS,
    clean_part,
    clean_reply,
)
from fanout.orchestrator.deep_agent.prompts import REPLACED_CHARACTERS
from fanout.orchestrator.valid_text import clean


class ValidText(Middleware):
    """Cleans what comes into a conversation; the model is told of what it sent itself."""

    async def before_agent(self, callback_context: CallbackContext) -> None:
        """Clean the user's message."""
        content = callback_context.user_content
        if content is not None and content.parts:  # the session's event has the same object
            content.parts[:] = map(clean_part, content.parts)

    async def after_model(
        self, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        """Clean a reply, in case that its model is not one of ours."""
        del callback_context
        clean_reply(llm_response)
        return None

    async def after_tool(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, tool_response: Any
    ) -> dict[str, Any] | None:
        """Clean a tool's result, and add a note if the call came with replaced characters."""
        del tool, args
        if not isinstance(tool_response, dict):
            return None  # it cannot be changed in place: see `Eviction`
        cleaned = clean(tool_response)
        if cleaned is not tool_response:
            tool_response.clear()
            tool_response.update(cleaned)
        if _is_cleaned_call(tool_context):
            notes = [tool_response.get("note"), REPLACED_CHARACTERS]
            tool_response["note"] = " ".join(str(note) for note in notes if note)
        return None


def _is_cleaned_call(context: ToolContext) -> bool:
    event = event_with_call(context.session.events, str(context.function_call_id))
    positions = (event.custom_metadata or {}).get(CLEANED_CALLS) if event is not None else None
    if event is None or not positions:
        return False
    ids = [call.id for call in event.get_function_calls()]
    return any(ids[each] == context.function_call_id for each in positions if each < len(ids))
