"""What happens to a reply of the model that cannot be used, and to a tool that raises.

A reply is sent back as the model's own call of a tool that it did not know of, answered with what
is wrong: so the event log stays a well-formed conversation that any process can go on with, and
every repetition is an ordinary, counted model call.
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

from orchestrator.deep_agent.guards.structured_output import OutputMismatch, OutputSchema
from orchestrator.deep_agent.messages import parts_of, text_of
from orchestrator.deep_agent.part import Part
from orchestrator.deep_agent.prompts import MALFORMED_REPLY, output_prompt
from orchestrator.deep_agent.tool import error_result

MAX_MALFORMED_IN_A_ROW = 3
"""A model that fails so often in a row does not recover: go on and the budget goes for nothing."""

MAX_OUTPUT_CORRECTIONS = 1
"""An answer that does not fit its schema is sent back once, then it is an error."""

MAX_ERROR_CHARACTERS = 2_000
"""Some exceptions carry whole documents."""

MALFORMED, MISFIT, TOO_LONG = "reply_not_readable", "answer_not_valid", "conversation_too_long"
IMAGES_REFUSED = "images_refused"
STAND_INS = {MALFORMED, MISFIT, TOO_LONG, IMAGES_REFUSED}
"""Names of calls that stand for a reply that could not be used; no tool has them."""

_MALFORMED_REASONS = {
    types.FinishReason.MALFORMED_FUNCTION_CALL,
    types.FinishReason.UNEXPECTED_TOOL_CALL,
}


class ReplyRepair(Part):
    """A reply that is empty or not readable goes back to the model, a few times."""

    async def after_model(
        self, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        """Send the reply back, or say that it was one too many."""
        if llm_response.partial or not _is_malformed(llm_response):
            return None
        if (
            _sent_back(callback_context.session.events, MALFORMED, in_a_row=True)
            >= MAX_MALFORMED_IN_A_ROW
        ):
            return llm_response.model_copy(
                update={
                    "error_code": "MALFORMED_REPLY",
                    "error_message": f"{MAX_MALFORMED_IN_A_ROW + 1} replies in a row could not be read.",
                }
            )
        return as_call(llm_response, MALFORMED, MALFORMED_REPLY)

    async def before_tool(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Answer the call that stands for a reply that could not be used."""
        del tool_context
        if tool.name not in STAND_INS:
            return None
        return error_result(str(args.get("problem", MALFORMED_REPLY)))


class OutputCheck(Part):
    """A final answer that does not fit its schema goes back once, then it is an error."""

    def __init__(self, schema: OutputSchema) -> None:
        self._schema = schema

    async def instruction(self, context: ReadonlyContext, tools: frozenset[str]) -> str:
        """What the answer must look like."""
        del context, tools
        return output_prompt(self._schema.json_schema)

    async def after_model(
        self, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        """Send an answer that does not fit back, or make it an error."""
        if llm_response.partial or llm_response.error_code or llm_response.get_function_calls():
            return None
        try:
            self._schema.parse(text_of(llm_response))
        except OutputMismatch as mismatch:
            events = callback_context.session.events
            if _sent_back(events, MISFIT, in_a_row=False) < MAX_OUTPUT_CORRECTIONS:
                return as_call(
                    llm_response, MISFIT, f"{mismatch} Send the whole corrected JSON value."
                )
            return llm_response.model_copy(
                update={"error_code": "OUTPUT_NOT_VALID", "error_message": str(mismatch)}
            )
        return None


class ToolErrors(Part):
    """What a tool raises becomes words for the model, unless its class says that the run must end."""

    def __init__(self, fatal: tuple[type[Exception], ...]) -> None:
        self._fatal = fatal

    async def on_tool_error(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, error: BaseException
    ) -> dict[str, Any] | None:
        """The error's class and text as a result."""
        del args, tool_context
        if isinstance(error, (asyncio.CancelledError, *self._fatal)):
            return None
        if type(tool) is BaseTool:
            return None  # an unknown name: ADK says so to the model, with the names that exist
        text = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARACTERS]
        return error_result(f"{tool.name} failed: {text}")


def _is_malformed(response: LlmResponse) -> bool:
    if response.finish_reason in _MALFORMED_REASONS:
        return True
    is_done = response.finish_reason in {None, types.FinishReason.STOP} and not response.error_code
    return is_done and not response.get_function_calls() and not text_of(response).strip()


def as_call(response: LlmResponse, name: str, problem: str) -> LlmResponse:
    """The reply's words, and a call that will be answered with the problem."""
    said = [part for part in parts_of(response) if part.text]
    call = types.FunctionCall(id=f"{name}_{uuid4().hex}", name=name, args={"problem": problem})
    # Gemini wants a signature on a thinking model's calls; this one says that the call is not the
    # model's.
    part = types.Part(function_call=call, thought_signature=SKIP_THOUGHT_SIGNATURE_VALIDATOR)
    return LlmResponse(
        content=types.Content(role="model", parts=[*said, part]),
        usage_metadata=response.usage_metadata,
        model_version=response.model_version,
    )


def _sent_back(events: Iterable[Event], name: str, *, in_a_row: bool) -> int:
    """How many replies went back since the user's last message, or at the end without another between."""
    count = 0
    for event in reversed(list(events)):
        names = [call.name for call in event.get_function_calls()]
        if name in names:
            count += 1
        elif event.author == "user" or (in_a_row and names):
            break
    return count
