"""Shortens long arguments of old calls in requests: what was written to a file is in the file.

Only requests are changed, never the session. Which calls are old is decided once between two
summaries, at the first reply after which the conversation has reached a certain size: so requests
keep the same beginning, which providers cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from google.adk.events import Event
from google.genai import types

from fanout.orchestrator.deep_agent.context.compaction import Conversation
from fanout.orchestrator.deep_agent.models.size import reported_tokens, tokens_in
from fanout.orchestrator.deep_agent.prompts import OLD_ARGUMENT

MAX_OLD_ARGUMENT_CHARACTERS = 2_000
"""Longer texts among an old call's arguments are shortened."""

OLD_ARGUMENT_HEAD_CHARACTERS = 200
"""How much of one is kept: enough to recognize the text."""


def old_calls(
    conversation: Conversation,
    agent_name: str,
    limit_tokens: int,
    tail_start: Callable[[Sequence[Event]], int],
) -> int:
    """Return how many calls, from the first that the model sees, are to be shortened.

    Args:
        conversation: The agent's messages.
        agent_name: The agent whose replies report the size of this context.
        limit_tokens: No call is shortened before the conversation has this size.
        tail_start: Returns the index of the first message that is kept as it is.
    """
    grown = _reached(conversation, agent_name, limit_tokens)
    if grown is None:
        return 0
    old = conversation.shown[: tail_start(conversation.shown[: grown + 1])]
    return sum(len(event.get_function_calls()) for event in old)


def shorten(contents: Sequence[types.Content], calls: int) -> None:
    """Shorten the arguments of the first `calls` calls.

    The parts are replaced in the contents; the original values are not changed.
    """
    left = calls
    for content in contents:
        for index, part in enumerate(content.parts or []):
            if left and part.function_call and content.parts:
                left -= 1
                arguments = _shortened(part.function_call.args)
                call = part.function_call.model_copy(update={"args": arguments})
                content.parts[index] = part.model_copy(update={"function_call": call})


def _reached(conversation: Conversation, agent_name: str, limit: int) -> int | None:
    """Return the index of the first message after which the conversation has this size, or None."""
    summarized_at = conversation.summary.timestamp if conversation.summary else 0.0
    size = tokens_in(conversation.summary_content)
    for index, event in enumerate(conversation.shown):
        size += tokens_in(event.content)
        if event.timestamp > summarized_at:  # an earlier count is of a longer conversation
            size = reported_tokens(event, agent_name) or size
        if size >= limit:
            return index
    return None


def _shortened(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_OLD_ARGUMENT_CHARACTERS:
        left_out = len(value) - OLD_ARGUMENT_HEAD_CHARACTERS
        return value[:OLD_ARGUMENT_HEAD_CHARACTERS] + OLD_ARGUMENT.format(left_out=left_out)
    if isinstance(value, dict):
        return {name: _shortened(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_shortened(item) for item in value]
    return value
