"""Messages to a running agent: each is appended to its session once, before the next model call.

The number of delivered messages is read from the session's events, so a run that another process
resumes neither loses nor repeats one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from .middleware import Middleware
from .prompts import MESSAGE_ARRIVED, MESSAGE_FROM_PARENT
from .unusable_replies import as_placeholder_call

NUMBER_KEY = "inbox_message"
"""Custom metadata of a delivered message: its number, from 1."""

ARRIVED = "message_arrived"
"""The name of the placeholder call that replaces a last reply while a message is unread."""

Messages = Callable[[int], Awaitable[Sequence[str]]]
"""Returns the messages after the first so many."""


class Inbox(Middleware):
    """Delivers new messages, and does not let the agent end while one is unread.

    Args:
        messages: The source of the messages.
    """

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    async def before_step(self, context: InvocationContext, request: LlmRequest) -> Iterable[Event]:
        """Append new messages to the session, as messages of the user."""
        del request
        if context.end_invocation:  # it waits for a person, so the model is not called
            return ()
        delivered = _delivered(context.session.events)
        texts = await self._messages(delivered)
        return [_event(context, text, number) for number, text in enumerate(texts, delivered + 1)]

    async def after_model(
        self, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        """Replace a last reply by a placeholder call if a message has arrived."""
        if llm_response.partial or llm_response.error_code or llm_response.get_function_calls():
            return None
        if not await self._messages(_delivered(callback_context.session.events)):
            return None
        return as_placeholder_call(llm_response, ARRIVED, MESSAGE_ARRIVED)

    async def before_tool(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Answer the placeholder call."""
        del args, tool_context
        return {"status": "success", "message": MESSAGE_ARRIVED} if tool.name == ARRIVED else None


def _delivered(events: Iterable[Event]) -> int:
    return max(map(message_number, events), default=0)


def message_number(event: Event) -> int:
    """Return the number of the message that an event delivers; 0 for any other event."""
    return int((event.custom_metadata or {}).get(NUMBER_KEY, 0))


def without_message_number(event: Event) -> Event:
    """Return an event that delivers no message, with the same content.

    The messages of a conversation that is continued by another run were not sent to that run.
    """
    if not message_number(event):
        return event
    metadata = {
        key: kept for key, kept in (event.custom_metadata or {}).items() if key != NUMBER_KEY
    }
    return event.model_copy(update={"custom_metadata": metadata})


def _event(context: InvocationContext, text: str, number: int) -> Event:
    part = types.Part(text=MESSAGE_FROM_PARENT.format(text=text))
    return Event(
        author="user",
        invocation_id=context.invocation_id,
        branch=context.branch,
        custom_metadata={NUMBER_KEY: number},
        content=types.Content(role="user", parts=[part]),
    )
