"""Replies of Anthropic's messages interface, checked before ADK's class reads them.

ADK's class knows four kinds of blocks and always expects a usage; at anything else it raises errors
of Python.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from anthropic import AsyncAnthropic, AsyncAnthropicVertex
from anthropic import types as claude

from fanout.orchestrator.deep_agent.models.call_arguments import marked_arguments
from fanout.orchestrator.deep_agent.models.endings import chat_reason
from fanout.orchestrator.deep_agent.models.errors import NotAReply, UnusableReply
from fanout.orchestrator.deep_agent.models.providers.answers import (
    check_is_stream,
    quoted,
    raise_error_in,
)

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}
"""Reasons that ADK's class knows, by those of OpenAI's chat completions."""

_CONTENT = {"text": "text", "thinking": "thinking", "redacted_thinking": "data", "tool_use": "name"}
"""The kinds of blocks that ADK's class knows, each with a text that it needs."""


class CheckedAnthropic:
    """Anthropic's client, as far as ADK's class uses it, with replies that the class can read.

    Args:
        client: The client.
    """

    def __init__(self, client: AsyncAnthropic | AsyncAnthropicVertex) -> None:
        self._client = client
        self.messages = self
        """The interface of messages, of which ADK's class calls `create`."""

    async def create(self, **request: Any) -> Any:
        """Send a request, and return the message or its events.

        Raises:
            ReplyFailed: The answer is an error, although its status is good.
            NotAReply: It is no answer of a model's service.
            UnusableReply: It has nothing that may be used.
        """
        answer = await self._client.messages.create(**request)
        if request.get("stream"):
            await check_is_stream(answer)
            return _checked_events(answer)
        return _checked_message(answer)


def _checked_message(message: Any) -> Any:
    raise_error_in(message)
    if not hasattr(message, "content"):
        raise NotAReply(quoted(message))
    if message.content is None:
        raise UnusableReply(f"it has no content: {quoted(message)}")
    message.stop_reason = _stop_reason(message.stop_reason)
    message.content = [block for block in message.content if _is_known(block)]
    for block in message.content:
        if block.type == "tool_use":
            block.input = marked_arguments(block.input)
    message.usage = _counted(message.usage, claude.Usage)
    return message


async def _checked_events(events: Any) -> AsyncIterator[Any]:
    """Yield the events of a streamed message; the arguments of a call come in one piece."""
    known: set[int] = set()
    inputs: dict[int, list[Any]] = {}
    """The arguments of calls that are not complete: what the block began with, then the pieces."""
    has_begun = False
    async for event in events:
        raise_error_in(event)
        if event.type == "message_start":
            has_begun = True
            event.message.usage = _counted(event.message.usage, claude.Usage)
        elif event.type == "content_block_start":
            if not _is_known(event.content_block):
                continue
            known.add(event.index)
            if event.content_block.type == "tool_use":
                inputs[event.index] = [event.content_block.input]
        elif event.type == "content_block_delta":
            if event.index not in known:
                continue
            if event.delta.type == "input_json_delta" and event.index in inputs:
                inputs[event.index].append(event.delta.partial_json)
                event.delta.partial_json = ""
        elif event.type == "content_block_stop" and event.index in inputs:
            yield _input_event(event.index, inputs.pop(event.index))
        elif event.type == "message_delta":
            event.usage = _counted(event.usage, claude.MessageDeltaUsage)
            event.delta.stop_reason = _stop_reason(event.delta.stop_reason)
        yield event
    if not has_begun:
        raise UnusableReply("it has no content")
    for index, pieces in inputs.items():
        yield _input_event(index, pieces)


def _input_event(index: int, pieces: list[Any]) -> Any:
    """Return the event with all arguments of a call; some services send them with its beginning."""
    given = "".join(pieces[1:]) or pieces[0]
    whole = json.dumps(marked_arguments(given))
    delta = claude.InputJSONDelta(type="input_json_delta", partial_json=whole)
    return claude.RawContentBlockDeltaEvent(type="content_block_delta", index=index, delta=delta)


def _is_known(block: Any) -> bool:
    return isinstance(getattr(block, _CONTENT.get(str(block.type), ""), None), str)


def _counted(usage: Any, kind: Callable[..., Any]) -> Any:
    """Return a usage whose numbers are numbers: some services send none, or leave some out."""
    if usage is None:
        return kind(input_tokens=0, output_tokens=0)
    for name in ("input_tokens", "output_tokens"):
        setattr(usage, name, getattr(usage, name, None) or 0)
    return usage


def _stop_reason(reason: str | None) -> Any:
    """Return a reason that ADK's class knows.

    Raises:
        UnusableReply: The reason is unknown.
    """
    known = chat_reason(reason)
    return None if known is None else _STOP_REASONS[known]
