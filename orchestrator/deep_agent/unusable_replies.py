"""Repairs of replies that cannot be used, of tools that raise, and of texts that are not valid.

An unusable reply becomes a placeholder call by the model, which is answered with what is wrong. So
the events stay a well-formed conversation that any process can resume, and every retry is an
ordinary, counted model call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
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

from ..shortening import error_text
from ..valid_text import clean_text, unused_key
from . import prompts
from .messages import list_parts, text_of
from .middleware import Middleware
from .models.errors import MAX_READ_CHARACTERS, without_keys
from .models.replies import (
    UNUSABLE_REPLY,
    clean_part,
    clean_reply,
    drop_calls,
    unreadable_arguments,
)
from .models.tokens import reply_usage
from .prompts import (
    MALFORMED_REPLY,
    TOO_MANY_CALLS,
    output_prompt,
)
from .structured_output import OutputMismatch, OutputSchema
from .tool import error_result

MAX_MALFORMED_IN_A_ROW = 3
"""A model that fails so often in a row does not recover; more retries would waste the budget."""

MAX_CALLS = 128
"""Tool calls in one reply: services offer a model no more tools than that. Each call that waits for
a person is named in its job's record."""

MAX_OUTPUT_CORRECTIONS = 1
"""How often an answer that does not match its schema is returned to the model."""

MAX_ERROR_CHARACTERS = 2_000
"""The length of an exception's text in a result: some contain whole documents."""

MIN_REPEATED_CHARACTERS = 12
"""A continuation that begins with as many characters of the cut text repeats them: fewer may be
equal by chance."""

BEGINNING_CHARACTERS = 24
"""How much of both is compared to see whether the model began its answer again."""

MAX_REPEATED_CHARACTERS = 400
"""How much of the cut text is compared with its continuation: models repeat a line or two."""

CUT_ERROR = "REPLY_CUT"
MALFORMED_ERROR = "MALFORMED_REPLY"

REPLY_ERRORS = frozenset({CUT_ERROR, MALFORMED_ERROR})
"""The error codes of runs whose last replies were rejected; their messages are ours, and quote the
service at most."""

UNREADABLE_REPLY = "reply_not_readable"
CUT_ANSWER = "answer_cut"
INVALID_ANSWER = "answer_not_valid"
TOO_LONG = "conversation_too_long"
IMAGES_REFUSED = "images_refused"

PLACEHOLDERS = {UNREADABLE_REPLY, CUT_ANSWER, INVALID_ANSWER, TOO_LONG, IMAGES_REFUSED}
"""The names of placeholder calls, which replace unusable replies; no tool has such a name."""

_MALFORMED_REASONS = {
    types.FinishReason.MALFORMED_FUNCTION_CALL,
    types.FinishReason.UNEXPECTED_TOOL_CALL,
}


@dataclass(frozen=True)
class _Fault:
    """Why a reply is rejected."""

    problem: str
    """The error and the remedy, for the model."""
    reason: str
    """A sentence about the last reply, for people."""
    placeholder: str = UNREADABLE_REPLY


class ReplyRepair(Middleware):
    """Returns a reply that cannot be used to the model, a few times; no call of it is carried out.

    A final answer that was cut is continued, and the parts are joined.
    """

    async def after_model(
        self, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        """Replace a rejected reply by a placeholder call, or by an error after too many."""
        if llm_response.partial:
            return None
        events = callback_context.session.events
        fault = _fault(llm_response)
        if fault is None:
            if llm_response.error_code:
                drop_calls(llm_response)
            if not llm_response.get_function_calls():
                _join_beginning(llm_response, events)
            return None
        if _rejected_in_a_row(events) < MAX_MALFORMED_IN_A_ROW:
            return as_placeholder_call(llm_response, fault.placeholder, fault.problem)
        return _rejected(llm_response, fault, events)

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
            if _corrections(events) < MAX_OUTPUT_CORRECTIONS:
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
        # Keys are hidden before the text is cut: the cut would leave a part of one.
        text = without_keys(clean_text(error_text(error, MAX_READ_CHARACTERS)))
        said = f"{type(error).__name__}: {text}"[:MAX_ERROR_CHARACTERS]
        return error_result(f"{tool.name} failed: {said}")


def _fault(response: LlmResponse) -> _Fault | None:
    """Return why a reply is rejected; None for one that can be used."""
    calls = response.get_function_calls()
    if response.error_code == UNUSABLE_REPLY:
        words = str(response.error_message)
        return _Fault(
            prompts.REPLY_DID_NOT_ARRIVE.format(reason=words),
            f"The last one did not arrive: {words}.",
        )
    if len(calls) > MAX_CALLS:
        problem = TOO_MANY_CALLS.format(most=MAX_CALLS, count=len(calls))
        reason = f"The last one had {len(calls)} tool calls; a reply may have {MAX_CALLS}."
        return _Fault(problem, reason)
    if response.finish_reason == types.FinishReason.MAX_TOKENS:
        return _cut(response)
    if unreadable := unreadable_arguments(response):
        listed = "; ".join(
            f"Those of {name} begin with {text!r}" for name, text in unreadable.items()
        )
        problem = prompts.UNREADABLE_ARGUMENTS.format(calls=listed)
        return _Fault(problem, "The last one had a tool call whose arguments are no JSON object.")
    if response.finish_reason in _MALFORMED_REASONS:
        return _Fault(MALFORMED_REPLY, "The last one had a tool call that could not be read.")
    if not response.error_code and not calls and not text_of(response).strip():
        return _Fault(MALFORMED_REPLY, "The last one had no text and no tool call.")
    return None


def _cut(response: LlmResponse) -> _Fault:
    """Return the fault of a reply that reached the length limit of its model."""
    tokens = reply_usage(response).output_tokens
    limit = prompts.REPLY_LIMIT.format(tokens=tokens) if tokens else prompts.REPLY_LIMIT_UNKNOWN
    counted = f" ({tokens} tokens)" if tokens else ""
    way_out = "ask for less at once, or raise max_output_tokens"
    reason = f"The last one was cut at the model's output limit{counted}: {way_out}."
    if response.get_function_calls() or not text_of(response).strip():
        return _Fault(prompts.REPLY_CUT.format(limit=limit), reason)
    return _Fault(prompts.ANSWER_CUT.format(limit=limit), reason, CUT_ANSWER)


def _rejected(response: LlmResponse, fault: _Fault, events: Sequence[Event]) -> LlmResponse:
    """Return the error that ends a run after too many rejected replies, with the text so far."""
    drop_calls(response)
    _join_beginning(response, events)
    is_cut = response.finish_reason == types.FinishReason.MAX_TOKENS
    many = f"{MAX_MALFORMED_IN_A_ROW + 1} replies in a row could not be used."
    return response.model_copy(
        update={
            "error_code": CUT_ERROR if is_cut else MALFORMED_ERROR,
            "error_message": f"{many} {fault.reason}",
        }
    )


def _join_beginning(response: LlmResponse, events: Sequence[Event]) -> None:
    """Put the beginning of an answer that was cut before its continuation, in place."""
    texts: list[str] = []
    for event in reversed(events):
        names = {call.name for call in event.get_function_calls()}
        if CUT_ANSWER in names:
            texts.append(text_of(event))
        elif event.author == "user" or (names and UNREADABLE_REPLY not in names):
            break
    if not texts or not text_of(response).strip():
        return
    whole = ""
    for text in (*reversed(texts), text_of(response)):
        whole = _continued(whole, text)
    others = [part for part in list_parts(response) if part.thought or not part.text]
    response.content = types.Content(role="model", parts=[*others, types.Part(text=whole)])


def _continued(beginning: str, text: str) -> str:
    """Return a text with its continuation, which may repeat its end or all of it."""
    head, (first, _, _) = text.lstrip()[:BEGINNING_CHARACTERS], text.lstrip().partition("\n")
    is_same_head = len(head) >= MIN_REPEATED_CHARACTERS and beginning.lstrip().startswith(head)
    is_same_heading = first.startswith("#") and beginning.lstrip().startswith(f"{first}\n")
    if is_same_head or is_same_heading:
        return text
    for count in range(min(MAX_REPEATED_CHARACTERS, len(text)), MIN_REPEATED_CHARACTERS - 1, -1):
        if beginning.endswith(text[:count]):
            return beginning + text[count:]
    return beginning + text


def as_placeholder_call(response: LlmResponse, name: str, problem: str) -> LlmResponse:
    """Return the reply's text with a placeholder call, which will be answered with the problem.

    Args:
        response: The reply.
        name: One of PLACEHOLDERS.
        problem: What is wrong with the reply, for the model.
    """
    texts = [part for part in list_parts(response) if part.text]
    call = types.FunctionCall(id=f"{name}_{uuid4().hex}", name=name, args={"problem": problem})
    # Gemini requires a signature on a thinking model's calls; this one marks the call as not the
    # model's.
    part = types.Part(function_call=call, thought_signature=SKIP_THOUGHT_SIGNATURE_VALIDATOR)
    return LlmResponse(
        content=types.Content(role="model", parts=[*texts, part]),
        usage_metadata=response.usage_metadata,
        model_version=response.model_version,
    )


def _rejected_in_a_row(events: Sequence[Event]) -> int:
    """Count the replies that ReplyRepair rejected since the last one that it let pass."""
    count = 0
    for event in reversed(events):
        names = {call.name for call in event.get_function_calls()}
        if names & {UNREADABLE_REPLY, CUT_ANSWER}:
            count += 1
        elif event.author == "user" or names:
            break
    return count


def _corrections(events: Sequence[Event]) -> int:
    """Count the answers since the user's last message that did not match their schema."""
    count = 0
    for event in reversed(events):
        if any(call.name == INVALID_ANSWER for call in event.get_function_calls()):
            count += 1
        elif event.author == "user":
            break
    return count


class ValidText(Middleware):
    """Cleans the texts of a conversation; the model is informed of those that it sent itself."""

    async def before_agent(self, callback_context: CallbackContext) -> None:
        """Clean the user's message."""
        content = callback_context.user_content
        if content is not None and content.parts:  # the session's event has the same object
            content.parts[:] = map(clean_part, content.parts)

    async def after_model(
        self, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        """Clean a reply, in case that its model is not one of ours, and tell its calls apart."""
        clean_reply(llm_response)
        if not llm_response.partial:
            _tell_apart(llm_response, callback_context.session.events)
        return None


def _tell_apart(response: LlmResponse, events: Sequence[Event]) -> None:
    """Give calls with an id that the conversation already has another one, in place.

    Some models number the calls of each reply from 0, or give all the same id. A result belongs to
    the call with its id, and services refuse a conversation in which that is not one.
    """
    if response.content is None or not (calls := response.get_function_calls()):
        return
    taken = {call.id for event in events for call in event.get_function_calls()}
    for call in calls:
        if call.id:
            call.id = unused_key(call.id, taken, "{key}_{number}")
            taken.add(call.id)
