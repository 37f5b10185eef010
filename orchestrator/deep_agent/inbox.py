"""Messages to an agent that is at work.

Each stands in its session before its next model call, once.

How many were delivered is read from the session's events, so a run that another process goes on
with neither loses one nor is told twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events import Event
from google.adk.flows.llm_flows._base_llm_processor import BaseLlmRequestProcessor
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from orchestrator.deep_agent.guards.replies import as_placeholder_call
from orchestrator.deep_agent.part import Part
from orchestrator.deep_agent.prompts import MESSAGE_ARRIVED, MESSAGE_FROM_PARENT

NUMBER_KEY = "inbox_message"
"""Custom metadata of a delivered message: its number, from 1."""

ARRIVED = "message_arrived"
"""The call that stands for a last reply with a message unread; no tool has the name."""

Messages = Callable[[int], Awaitable[Sequence[str]]]
"""Gives all messages but the first so many."""


class Inbox(Part):
    """Puts new messages before the model, and does not let the agent end while one is unread."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    def request_processors(self) -> Sequence[BaseLlmRequestProcessor]:
        """Before every model call: is there something new?"""
        return (_Delivery(self._messages),)

    async def after_model(
        self, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        """Go on after a last reply when a message has come meanwhile."""
        if llm_response.partial or llm_response.error_code or llm_response.get_function_calls():
            return None
        if not await self._messages(_delivered(callback_context.session.events)):
            return None
        return as_placeholder_call(llm_response, ARRIVED, MESSAGE_ARRIVED)

    async def before_tool(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Answer the call that stands for a last reply."""
        del args, tool_context
        return {"status": "success", "message": MESSAGE_ARRIVED} if tool.name == ARRIVED else None


class _Delivery(BaseLlmRequestProcessor):
    """Appends new messages to the session, as the user's."""

    name = "inbox"

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    async def run_async(
        self, invocation_context: InvocationContext, llm_request: LlmRequest
    ) -> AsyncGenerator[Event]:
        """One event for each message."""
        del llm_request
        if invocation_context.end_invocation:  # it waits for a person: the model is not called
            return
        delivered = _delivered(invocation_context.session.events)
        for number, text in enumerate(await self._messages(delivered), start=delivered + 1):
            yield _event(invocation_context, text, number)


def _delivered(events: Iterable[Event]) -> int:
    return max(map(message_number, events), default=0)


def message_number(event: Event) -> int:
    """The number of the message that an event delivers; 0 for any other event."""
    return int((event.custom_metadata or {}).get(NUMBER_KEY, 0))


def _event(context: InvocationContext, text: str, number: int) -> Event:
    part = types.Part(text=MESSAGE_FROM_PARENT.format(text=text))
    return Event(
        author="user",
        invocation_id=context.invocation_id,
        branch=context.branch,
        custom_metadata={NUMBER_KEY: number},
        content=types.Content(role="user", parts=[part]),
    )
