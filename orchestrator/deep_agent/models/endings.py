"""How a reply ended, as its service says it: complete, cut, stopped for its content, or unknown.

Services have words of their own for it, and new ones every year. What is unknown here is no reason
to believe a reply, and none to end a run: the request is repeated.
"""

from __future__ import annotations

from google.adk.models.llm_response import LlmResponse
from google.genai import types

from fanout.orchestrator.deep_agent.models.errors import UnusableReply

UNUSABLE_REPLY = "UNUSABLE_REPLY"
"""The error code of a reply that stands for one that had nothing to use; its message says why."""

_DONE = frozenset(
    {
        *("stop", "tool_calls", "function_call", "tool_use", "end_turn", "stop_sequence"),
        *("eos", "eos_token", "end", "complete", "completed", "finished"),
    }
)
_CUT = frozenset(
    {
        *("length", "max_tokens", "max_output_tokens", "max_length", "token_limit"),
        *("model_length", "model_context_window_exceeded"),
        "pause_turn",  # anthropic: it goes on when it is asked to
    }
)
_STOPPED = frozenset(
    {
        *("safety", "content_filter", "content_filtered", "guardrail_intervened", "refusal"),
        *("recitation", "language", "blocklist", "prohibited_content", "spii", "jailbreak"),
        *("image_safety", "image_prohibited_content", "image_recitation", "model_armor"),
    }
)
_MALFORMED = frozenset({"malformed_function_call", "unexpected_tool_call"})

_CHAT_REASONS = ((_DONE, "stop"), (_CUT, "length"), (_STOPPED, "content_filter"))


def chat_reason(reason: str | None) -> str | None:
    """Return a finish reason in the words of OpenAI's chat completions; None for none.

    Raises:
        UnusableReply: The reason is unknown.
    """
    if not reason:
        return None
    known = (word for reasons, word in _CHAT_REASONS if str(reason).lower() in reasons)
    if (found := next(known, None)) is None:
        raise ended_with(str(reason))
    return found


def ended_with(
    reason: str,
    message: str | None = None,
    usage: types.GenerateContentResponseUsageMetadata | None = None,
) -> UnusableReply:
    """Return the failure of a reply that ended for a reason that is unknown, or that is none."""
    said = f": {message}" if message else ""
    return UnusableReply(f'it ended with the finish reason "{reason}"{said}', usage)


def settle_ending(response: LlmResponse) -> None:
    """Make a complete reply say in one way how it ended, in place.

    A reply that was cut has the finish reason MAX_TOKENS and no error, as it is continued. One that
    the service stopped for its content has an error, and no calls.

    Raises:
        UnusableReply: It ended for a reason that is unknown, or with an error of the service.
    """
    reason = _reason(response)
    if reason is None or reason in _DONE:
        return
    if reason in _CUT:
        response.finish_reason = types.FinishReason.MAX_TOKENS
        response.error_code = response.error_message = None
    elif reason in _STOPPED:
        said = f": {response.error_message}" if response.error_message else ""
        response.error_code = reason.upper()
        response.error_message = f"The service stopped the reply ({reason.upper()}{said})."
        drop_calls(response)
    elif reason not in _MALFORMED:
        message = response.error_message
        raise ended_with(_shown(response), message, response.usage_metadata)


def say_ending(code: object) -> str:
    """Return why a run ended without an answer, for people.

    Args:
        code: The error code of its last reply, in any service's words; empty for none.
    """
    reason = _text(code).removeprefix("FinishReason.").lower()
    if not reason:
        return "The agent's last reply had no text."
    if reason in _CUT:
        return "The agent's last reply was cut at the model's output limit: ask for less at once."
    if reason in _STOPPED:
        return f"The model's service stopped the agent's reply for its content ({reason})."
    if reason in _MALFORMED:
        return "The agent's last reply had a tool call that could not be read."
    return f"The model's service ended the agent's reply without an answer ({reason})."


def unusable(model: str, reason: str, reply: UnusableReply | None) -> LlmResponse:
    """Return the reply that stands for one that had nothing to use.

    Args:
        model: The model that was asked.
        reason: What was wrong with it.
        reply: The last one; None if its client could not read it.
    """
    return LlmResponse(
        model_version=model,
        finish_reason=types.FinishReason.OTHER,
        error_code=UNUSABLE_REPLY,
        error_message=reason,
        usage_metadata=reply.usage if reply else None,
    )


def drop_calls(response: LlmResponse) -> None:
    """Remove the tool calls of a reply, in place, so that none of them is carried out."""
    if response.content is not None and response.get_function_calls():
        kept = [part for part in response.content.parts or () if not part.function_call]
        response.content = response.content.model_copy(update={"parts": kept})


def _reason(response: LlmResponse) -> str | None:
    """Return the reason in lower case: that of the reply, or the error without a reason."""
    if response.finish_reason is None:
        return _text(response.error_code).lower() or None
    return _text(response.finish_reason).lower()


def _shown(response: LlmResponse) -> str:
    return _text(response.finish_reason) or _text(response.error_code)


def _text(value: object) -> str:
    return str(getattr(value, "value", value) or "")
