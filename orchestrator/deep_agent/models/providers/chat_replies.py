"""Replies in the form of OpenAI's chat completions, checked before ADK's classes read them.

Many services copy the form, and fill it as they like: an error or a page with status 200, no
choices, arguments that are no object, finish reasons of their own. At some of these ADK's classes
raise errors of Python, and others they take for replies.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from fanout.orchestrator.deep_agent.models.call_arguments import marked_arguments, read_arguments
from fanout.orchestrator.deep_agent.models.endings import chat_reason
from fanout.orchestrator.deep_agent.models.errors import NotAReply, UnusableReply
from fanout.orchestrator.deep_agent.models.providers.answers import quoted, raise_error_in

Arguments = Callable[[Any], str]
"""Returns the arguments of a call, as its service sent them, in a form that ADK's class reads."""


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
    raise_error_in(reply)
    if not hasattr(reply, "choices"):
        raise NotAReply(quoted(reply))
    if not reply.choices:
        raise UnusableReply(f"it has no choices: {quoted(reply)}")
    choice = reply.choices[0]
    if (message := choice.message) is None:
        raise UnusableReply(f"it has no message: {quoted(reply)}")
    choice.finish_reason = chat_reason(choice.finish_reason)
    if isinstance(message.content, list):
        message.content = "".join(_texts(message.content))
    if not message.content and getattr(message, "refusal", None):
        message.content, choice.finish_reason = message.refusal, "content_filter"
    calls = [call for call in message.tool_calls or () if getattr(call, "function", None)]
    for call in calls:
        call.function.arguments = arguments(call.function.arguments)
    message.tool_calls = calls or None
    return reply


async def checked_stream(chunks: Any, arguments: Arguments) -> AsyncIterator[Any]:
    """Yield the chunks of a streamed reply, changed so that ADK's class can read them.

    The arguments of calls and the finish reason come last, because only whole arguments can be
    read; until then the chunks of a call are empty.

    Args:
        chunks: An asynchronous iterable of objects like `ChatCompletionChunk`.
        arguments: Is applied to the arguments of each call.

    Raises:
        ReplyFailed: A chunk is an error.
        UnusableReply: The reply has nothing that may be used.
    """
    held, reason, last = _HeldCalls(), None, None
    async for chunk in chunks:
        raise_error_in(chunk)
        choice = next(iter(getattr(chunk, "choices", None) or ()), None)
        if choice is not None and getattr(choice, "delta", None) is None:
            chunk.choices = []
        elif choice is not None:
            last = copy.deepcopy(chunk)
            reason = chat_reason(choice.finish_reason) or reason
            choice.finish_reason = None
            held.take(choice.delta)
        yield chunk
    if last is None:
        raise UnusableReply("it has no choices")
    for calls, finish_reason in ((held.complete(arguments), None), (None, reason)):
        choice = last.choices[0]
        choice.delta.content = None
        choice.delta.tool_calls, choice.finish_reason = calls, finish_reason
        if hasattr(last, "usage"):
            last.usage = None
        if calls or finish_reason:
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
