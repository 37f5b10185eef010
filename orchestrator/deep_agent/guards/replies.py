"""Repairs of replies that cannot be used, and of tools that raise.

An unusable reply becomes a placeholder call by the model, which is answered with what is wrong. So
the events stay a well-formed conversation that any process can resume, and every retry is an
ordinary, counted model call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any
from uuid import uuid4

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.events import Event
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.adk.utils.content_utils import SKIP_THOUGHT_SIGNATURE_VALIDATOR
from google.genai import types

from fanout.orchestrator.deep_agent.guards.structured_output import OutputMismatch, OutputSchema
from fanout.orchestrator.deep_agent.messages import parts_of, text_of
from fanout.orchestrator.deep_agent.middleware import Middleware
from fanout.orchestrator.deep_agent.prompts import MALFORMED_REPLY, TOO_MANY_CALLS, output_prompt
from fanout.orchestrator.deep_agent.tool import error_result
from fanout.orchestrator.valid_text import clean_text

MAX_MALFORMED_IN_A_ROW = 3
"""A model that fails so often in a row does not recover; more retries would waste the budget."""

MAX_CALLS = 128
"""Tool calls in one reply: services offer a model no more tools than that. Each call that waits for
a person is named in its job's record."""

MAX_OUTPUT_CORRECTIONS = 1
"""How often an answer that does not match its schema is returned to the model."""

MAX_ERROR_CHARACTERS = 2_000
"""The length of an exception's text in a result: some contain whole documents."""

UNREADABLE_REPLY = "reply_not_readable"
INVALID_ANSWER = "answer_not_valid"
TOO_LONG = "conversation_too_long"
IMAGES_REFUSED = "images_refused"
PLACEHOLDERS = {UNREADABLE_REPLY, INVALID_ANSWER, TOO_LONG, IMAGES_REFUSED}
"""The names of placeholder calls, which replace unusable replies; no tool has such a name."""

_MALFORMED_REASONS = {
    types.FinishReason.MALFORMED_FUNCTION_CALL,
    types.FinishReason.UNEXPECTED_TOOL_CALL,
}


class ReplyRepair(Middleware):
    """Returns an empty or malformed reply, or one with too many calls, a few times."""

    async def after_model(
        self, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        """Replace a malformed reply by a placeholder call, or by an error after too many."""
        if llm_response.partial:
            return None
        if (count := len(llm_response.get_function_calls())) > MAX_CALLS:
            problem = TOO_MANY_CALLS.format(most=MAX_CALLS, count=count)
        elif _is_malformed(llm_response):
            problem = MALFORMED_REPLY
        else:
            return None
        events = callback_context.session.events
        if _placeholder_calls(events, UNREADABLE_REPLY, in_a_row=True) >= MAX_MALFORMED_IN_A_ROW:
            message = f"{MAX_MALFORMED_IN_A_ROW + 1} replies in a row could not be read."
            return llm_response.model_copy(
                update={"error_code": "MALFORMED_REPLY", "error_message": message}
            )
        return as_placeholder_call(llm_response, UNREADABLE_REPLY, problem)

    async def before_tool(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Answer a placeholder call with what was wrong with the reply."""
        del tool_context
        if tool.name not in PLACEHOLDERS:
            return None
        return error_result(str(args.get("problem", MALFORMED_REPLY)))


class OutputCheck(Middleware):
    """Returns a final answer that does not match its schema once; then it is an error."""

    def __init__(self, schema: OutputSchema) -> None:
        self._schema = schema

    async def instruction(self, context: ReadonlyContext, tools: frozenset[str]) -> str:
        """Describe the schema."""
        del context, tools
        return output_prompt(self._schema.json_schema)

    async def after_model(
        self, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        """Replace an answer that does not match by a placeholder call, or by an error."""
        if llm_response.partial or llm_response.error_code or llm_response.get_function_calls():
            return None
        try:
            await asyncio.to_thread(self._schema.parse, text_of(llm_response))
        except OutputMismatch as mismatch:
            events = callback_context.session.events
            if _placeholder_calls(events, INVALID_ANSWER, in_a_row=False) < MAX_OUTPUT_CORRECTIONS:
                return as_placeholder_call(
                    llm_response, INVALID_ANSWER, f"{mismatch} Send the whole corrected JSON value."
                )
            return llm_response.model_copy(
                update={"error_code": "OUTPUT_NOT_VALID", "error_message": str(mismatch)}
            )
        return None


class ToolErrors(Middleware):
    """Turns what a tool raises into an error result, except for exceptions that end the run.

    Args:
        fatal: The exceptions that end the run.
    """

    def __init__(self, fatal: tuple[type[Exception], ...]) -> None:
        self._fatal = fatal

    async def on_tool_error(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, error: BaseException
    ) -> dict[str, Any] | None:
        """Return the exception's class and text as an error result."""
        del args, tool_context
        if isinstance(error, (asyncio.CancelledError, *self._fatal)):
            return None
        if type(tool) is BaseTool:
            return None  # an unknown tool: ADK's own message lists the tools that exist
        text = clean_text(f"{type(error).__name__}: {error}")[:MAX_ERROR_CHARACTERS]
        return error_result(f"{tool.name} failed: {text}")


def _is_malformed(response: LlmResponse) -> bool:
    if response.finish_reason in _MALFORMED_REASONS:
        return True
    is_done = response.finish_reason in {None, types.FinishReason.STOP} and not response.error_code
    return is_done and not response.get_function_calls() and not text_of(response).strip()


def as_placeholder_call(response: LlmResponse, name: str, problem: str) -> LlmResponse:
    """Return the reply's text with a placeholder call, which will be answered with the problem.

    Args:
        response: The reply.
        name: One of PLACEHOLDERS.
        problem: What is wrong with the reply, for the model.
    """
    texts = [part for part in parts_of(response) if part.text]
    call = types.FunctionCall(id=f"{name}_{uuid4().hex}", name=name, args={"problem": problem})
    # Gemini requires a signature on a thinking model's calls; this one marks the call as not the
    # model's.
    part = types.Part(function_call=call, thought_signature=SKIP_THOUGHT_SIGNATURE_VALIDATOR)
    return LlmResponse(
        content=types.Content(role="model", parts=[*texts, part]),
        usage_metadata=response.usage_metadata,
        model_version=response.model_version,
    )


def _placeholder_calls(events: Iterable[Event], name: str, *, in_a_row: bool) -> int:
    """Count placeholder calls since the user's last message, or only the uninterrupted ones.

    Args:
        events: The session's events.
        name: The name of the placeholder calls.
        in_a_row: Count only those after the last other call.
    """
    count = 0
    for event in reversed(list(events)):
        names = [call.name for call in event.get_function_calls()]
        if name in names:
            count += 1
        elif event.author == "user" or (in_a_row and names):
            break
    return count
