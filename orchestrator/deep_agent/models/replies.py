r"""What a service answered, read before it counts as a reply: its form, its calls, how it ended.

Services have words of their own for the end of a reply, and new ones every year. What is unknown
here is no reason to believe a reply, and none to end a run: the request is repeated. Many services
copy the form of OpenAI's chat completions and fill it as they like: an error or a page with status
200, no choices, arguments that are no object or encoded twice. At some of these ADK's classes raise
errors of Python, and others they take for replies. A model may also send half of a surrogate pair
(`\ud83d` without what follows it), which no encoding can hold.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from google.adk.models.llm_response import LlmResponse
from google.genai import types

from ...shortening import one_line
from ...valid_text import REPLACEMENT, clean, clean_text
from .errors import NotAReply, UnusableReply, find_error

UNUSABLE_REPLY = "UNUSABLE_REPLY"
"""The error code of a reply that replaces an unusable one; its message says why."""

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
        "pause_turn",  # anthropic: it continues when it is asked to
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

MAX_QUOTED_CHARACTERS = 200
"""How much of an answer that is no reply an error quotes."""

_STREAM = "text/event-stream"
"""The media type of a streamed answer; with any other one its text says whether it is one."""

BROKE_OFF = "it broke off"
"""A stream that ends without saying how the reply ended: what came may be half of it."""

UNREADABLE = "unreadable_arguments"
"""The only key of arguments that are no object; no tool has such an argument."""

Arguments = Callable[[Any], str]
"""Returns the arguments of a call, as its service sent them, in a form that ADK's class reads."""

CLEANED_CALLS = "cleaned_calls"
"""Key of a reply's metadata: the positions of the calls whose results say that characters of the
reply were replaced."""


def chat_reason(reason: str | None) -> str | None:
    """Return a finish reason in the words of OpenAI's chat completions; None for none.

    Raises:
        UnusableReply: The reason is unknown.
    """
    if not reason:
        return None
    known = (word for reasons, word in _CHAT_REASONS if str(reason).lower() in reasons)
    if (found := next(known, None)) is None:
        raise ending_failure(str(reason))
    return found


def ending_failure(
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
        raise ending_failure(_shown(response), message, response.usage_metadata)


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
    """Return the reply that replaces an unusable one.

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


def raise_reply_error(reply: Any) -> None:
    """Raise what a reply with a good status says of an error.

    Args:
        reply: An object of a client, or JSON that it could not make one of.

    Raises:
        ReplyFailed: It says something.
        NotAReply: It is a text: a page of a proxy, or of another server.
    """
    if isinstance(reply, str):
        raise NotAReply(quoted(reply))
    is_json = isinstance(reply, list | dict)
    body = _as_json(reply) if is_json else {"error": _as_json(getattr(reply, "error", None))}
    if (failed := find_error(body)) is not None:
        raise failed


def quoted(reply: Any) -> str:
    """Return the beginning of an answer on one line, to be quoted in an error."""
    text = reply if isinstance(reply, str) else json.dumps(_as_json(reply), default=str)
    return one_line(text, MAX_QUOTED_CHARACTERS)


async def check_is_stream(answer: Any) -> None:
    """Check that a streamed answer is one.

    Args:
        answer: The stream of a client.

    Raises:
        ReplyFailed: It is an error that is not streamed.
        UnusableReply: It is another JSON value.
        NotAReply: It is anything else.
    """
    response = getattr(answer, "response", None)
    kind = "" if response is None else response.headers.get("content-type", "")
    if response is None or not kind or kind.startswith(_STREAM):
        return
    text = (await response.aread()).decode(errors="replace")
    if text.lstrip().startswith(("data:", "event:", ":")):
        return
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        raise NotAReply(quoted(text) or "its answer was empty") from None
    raise without_reply(body, "it is no stream")


def without_reply(answer: Any, lacking: str) -> Exception:
    """Return the failure of an answer without a reply: the error that it reports, if it has words.

    Args:
        answer: An object of a client, or a decoded body.
        lacking: What is missing, for an answer without words.
    """
    found = find_error(_as_json(answer), lacks_reply=True)
    return found or UnusableReply(f"{lacking}: {quoted(answer)}")


def _as_json(value: Any) -> Any:
    """Return a client's objects as the JSON that they were made of."""
    if isinstance(value, list):
        return list(map(_as_json, value))
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_none=True, warnings=False)
    return value


def read_arguments(given: Any) -> dict[str, Any] | None:
    """Return the object that a call's arguments are; None if they are none.

    A text is JSON. Nothing, `null` and an empty list are no arguments. A text within the text is
    read as well: some models encode their arguments twice.
    """
    value = given
    for _ in range(2):
        if isinstance(value, str):
            value = _decoded(value)
    if isinstance(value, Mapping):
        return dict(value) if _is_json(value) else None
    return {} if value is None or value == [] else None


def _is_json(value: Any) -> bool:
    """Return whether a value can be sent back: `NaN` and numbers that are too large cannot."""
    try:
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return False
    return True


def marked_arguments(given: Any) -> dict[str, Any]:
    """Return the arguments as `read_arguments` does; those that are no object under UNREADABLE."""
    found = read_arguments(given)
    return {UNREADABLE: _text_of(given)[:MAX_QUOTED_CHARACTERS]} if found is None else found


def _text_of(given: Any) -> str:
    try:
        return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    except RecursionError:
        return "deeply nested JSON"


def unreadable_arguments(response: LlmResponse) -> dict[str, str]:
    """Return what the marked arguments of a reply begin with, by the names of the calls."""
    return {
        str(call.name): str(call.args[UNREADABLE])
        for call in response.get_function_calls()
        if call.args and call.args.keys() == {UNREADABLE}
    }


def _decoded(text: str) -> Any:
    """Return the JSON value of a text; the text itself if it has none."""
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def marked(given: Any) -> str:
    """Return arguments as JSON of an object, for a class that knows no other."""
    return json.dumps(marked_arguments(given))


def repaired(given: Any) -> str:
    """Return arguments as JSON of an object if they are one, for a class that repairs others."""
    found = read_arguments(given)
    return str(given) if found is None else json.dumps(found)


def checked_reply(reply: Any, arguments: Arguments) -> Any:
    """Return a whole reply, changed so that ADK's class can read it.

    Args:
        reply: What the client made of the answer: like a `ChatCompletion`, or any other JSON.
        arguments: Is applied to the arguments of each call.

    Raises:
        ReplyFailed: The answer is an error.
        NotAReply: It is no answer of a model's service.
        UnusableReply: It has nothing that may be used.
    """
    raise_reply_error(reply)
    if not hasattr(reply, "choices"):
        raise NotAReply(quoted(reply))
    if not reply.choices:
        raise without_reply(reply, "it has no choices")
    choice = reply.choices[0]
    if (message := choice.message) is None:
        raise without_reply(reply, "it has no message")
    choice.finish_reason = chat_reason(choice.finish_reason)
    if isinstance(message.content, list):
        message.content = "".join(_texts(message.content))
    if not message.content and getattr(message, "refusal", None):
        message.content, choice.finish_reason = message.refusal, "content_filter"
    calls = [call for call in message.tool_calls or () if getattr(call, "function", None)]
    for call in calls:
        call.id = call_id(call.id)
        call.function.arguments = arguments(call.function.arguments)
    message.tool_calls = calls or None
    return reply


def call_id(given: Any) -> str | None:
    """Return the id of a call as text, as which it is sent back; None if the call has none."""
    return given if given is None or isinstance(given, str) else str(given)


async def checked_stream(chunks: Any, arguments: Arguments) -> AsyncIterator[Any]:
    """Yield the chunks of a streamed reply, changed so that ADK's class can read them.

    The arguments of calls and the finish reason come last, because only whole arguments can be
    read; until then the chunks of a call are empty.

    Args:
        chunks: An asynchronous iterable of objects like `ChatCompletionChunk`.
        arguments: Is applied to the arguments of each call.

    Raises:
        ReplyFailed: A chunk is an error.
        UnusableReply: The reply has nothing that may be used, or its end is missing: a finish
            reason, or else the usage that follows all choices.
    """
    held, reason, last, is_whole = _HeldCalls(), None, None, False
    has_text, refused = False, ""
    async for chunk in chunks:
        raise_reply_error(chunk)
        choice = next(iter(getattr(chunk, "choices", None) or ()), None)
        # The use of the whole reply comes after its end.
        is_whole = is_whole or (choice is None and getattr(chunk, "usage", None) is not None)
        if choice is not None and getattr(choice, "delta", None) is None:
            chunk.choices = []
        elif choice is not None:
            last = copy.deepcopy(chunk)
            reason = chat_reason(choice.finish_reason) or reason
            choice.finish_reason = None
            refused += getattr(choice.delta, "refusal", None) or ""
            held.take(choice.delta)
            has_text = has_text or bool(choice.delta.content)
        yield chunk
    if last is None:
        raise UnusableReply("it has no choices")
    if reason is None and not is_whole:
        raise UnusableReply(BROKE_OFF)
    if has_text:
        refused = ""
    elif refused:
        reason = "content_filter"
    for calls, finish_reason in ((held.complete(arguments), None), (None, reason)):
        choice = last.choices[0]
        choice.delta.content = refused or None
        refused = ""
        choice.delta.tool_calls, choice.finish_reason = calls, finish_reason
        if hasattr(last, "usage"):
            last.usage = None
        if calls or finish_reason or choice.delta.content:
            yield copy.deepcopy(last)


class _HeldCalls:
    """The calls of a streamed reply, whose arguments are held back."""

    def __init__(self) -> None:
        self._calls: dict[int, Any] = {}
        """The first delta of each call, by the call's index."""
        self._given: dict[int, list[Any]] = {}

    def take(self, delta: Any) -> None:
        """Take the arguments out of a delta, in place."""
        calls = [call for call in getattr(delta, "tool_calls", None) or () if call.function]
        for call in calls:
            if call.index is None:  # some services send whole calls, and number none
                call.index = len(self._calls) if call.id or not self._calls else max(self._calls)
            call.id = call_id(call.id)
            if call.index not in self._calls:
                self._calls[call.index] = copy.deepcopy(call)
            if given := call.function.arguments:
                self._given.setdefault(call.index, []).append(given)
                call.function.arguments = ""
        if hasattr(delta, "tool_calls"):
            delta.tool_calls = calls or None

    def complete(self, arguments: Arguments) -> list[Any] | None:
        """Return deltas with the arguments of all calls, and nothing that was sent before."""
        for index, call in self._calls.items():
            given = self._given.get(index, [])
            whole = "".join(given) if all(isinstance(each, str) for each in given) else given[-1]
            call.id = call.function.name = None
            call.function.arguments = arguments(whole)
        return list(self._calls.values()) or None


def _texts(content: list[Any]) -> Iterator[str]:
    """Yield the texts of a message that is a list of blocks."""
    for block in content:
        text = block.get("text") if isinstance(block, dict) else getattr(block, "text", None)
        yield text if isinstance(text, str) else ""


def clean_reply(response: LlmResponse) -> None:
    """Replace what no text can hold in a reply's texts, thoughts, calls and error message.

    The metadata of a whole reply says in which calls that was; in the first if it was in none.
    """
    if response.error_message:
        response.error_message = clean_text(response.error_message)
    parts = (response.content.parts if response.content else None) or []
    cleaned = [clean_part(part) for part in parts]
    changed = [new is not old for new, old in zip(cleaned, parts, strict=True)]
    if response.content is None or not any(changed):
        return
    response.content = response.content.model_copy(update={"parts": cleaned})
    of_calls = [is_new for is_new, part in zip(changed, parts, strict=True) if part.function_call]
    if of_calls and not response.partial:
        calls = [position for position, is_new in enumerate(of_calls) if is_new] or [0]
        response.custom_metadata = {**(response.custom_metadata or {}), CLEANED_CALLS: calls}


def clean_part(part: types.Part) -> types.Part:
    """Return a part of a message with valid texts; itself if they all are."""
    update: dict[str, Any] = {}
    if part.text is not None and (text := clean_text(part.text)) is not part.text:
        update["text"] = text
    call = part.function_call
    if call is not None and (changed := _changed(call, "id", "name", "args")):
        if "name" in changed:  # services take back no name with other characters
            changed["name"] = changed["name"].replace(REPLACEMENT, "_")
        update["function_call"] = call.model_copy(update=changed)
    for name, fields in _OTHERS.items():
        inner = getattr(part, name)
        if inner is not None and (changed := _changed(inner, *fields)):
            update[name] = inner.model_copy(update=changed)
    return part.model_copy(update=update) if update else part


_OTHERS = {
    "function_response": ("id", "name", "response"),
    "executable_code": ("code",),
    "code_execution_result": ("output",),
    "file_data": ("file_uri", "display_name"),
}
"""The other fields of a part that have texts, with those fields."""


def _changed(model: Any, *fields: str) -> dict[str, Any]:
    """Return the fields whose values have to be replaced, with the new values."""
    values = {field: getattr(model, field) for field in fields}
    return {field: new for field, old in values.items() if (new := clean(old)) is not old}
