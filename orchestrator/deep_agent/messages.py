"""The text of messages in a conversation: replies of a model, and summaries in them.

A summary of older messages is recognized by its first sentence; of an agent's last message its
parent reads what follows the last `## Summary`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from google.adk.events import Event
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from . import prompts

_HEADING = re.compile(r"^##[ \t]+Summary[ \t]*:?[ \t]*$", re.IGNORECASE | re.MULTILINE)
_CUT = "\n… (cut)"
_SUMMED_UP = re.compile(re.escape(prompts.SUMMARY_BEGINS).replace(r"\{replies\}", r"(\d+)"))


def list_parts(message: LlmResponse | None) -> list[types.Part]:
    """Return the parts of a message; none if it has no content.

    Args:
        message: A reply of a model, or an event, which ADK derives from it.
    """
    return (message.content.parts if message is not None and message.content else None) or []


def text_of(message: LlmResponse | None, separator: str = "") -> str:
    """Return the text of a message without the model's thoughts."""
    return separator.join(
        part.text for part in list_parts(message) if part.text and not part.thought
    )


def is_reply(message: LlmResponse) -> bool:
    """Return whether a message comes from a model."""
    return message.content is not None and message.content.role == "model"


def is_request(event: Event) -> bool:
    """Return whether an event is a message of the user, and not a result."""
    return event.author == "user" and bool(event.content) and not event.get_function_responses()


def last_reply(events: Sequence[Event]) -> Event | None:
    """Return the model's last reply, or the error in its place; None if there is neither.

    Events after it are ADK's bookkeeping.
    """
    replies = (
        event
        for event in reversed(events)
        if event.error_code or (is_reply(event) and text_of(event).strip())
    )
    return next(replies, None)


def event_with_call(events: Sequence[Event], call_id: str) -> Event | None:
    """Return the newest event that contains the call; None if there is none."""
    holders = (
        event
        for event in reversed(events)
        if any(call.id == call_id for call in event.get_function_calls())
    )
    return next(holders, None)


def with_response(part: types.Part, response: dict[str, Any]) -> types.Part:
    """Return a copy of a part with a tool's result, with another result."""
    answer = part.function_response or types.FunctionResponse()
    changed = answer.model_copy(update={"response": response})
    return part.model_copy(update={"function_response": changed})


def summary_of(message: str, max_characters: int) -> str:
    """Return the text under the last `## Summary` heading, else the whole message.

    Args:
        message: The agent's last message.
        max_characters: The length of the result at most.
    """
    headings = list(_HEADING.finditer(message))
    text = message[headings[-1].end() :].strip() if headings else ""
    text = text or message.strip()
    if len(text) <= max_characters:
        return text
    return text[: max_characters - len(_CUT)].rstrip() + _CUT


def summary_text(content: types.Content | None) -> str:
    """Return the summary in a content; empty if it is not a summary."""
    parts = (content.parts if content else None) or []
    found = next((found for part in parts if (found := _SUMMED_UP.match(part.text or ""))), None)
    return found.string[found.end() :].strip() if found else ""


def summed_up_replies(content: types.Content) -> int:
    """Return how many replies of the model a summary replaces; 0 for any other content."""
    found = (_SUMMED_UP.match(part.text or "") for part in content.parts or [])
    return next((int(match[1]) for match in found if match), 0)


def above_summary(content: types.Content) -> Sequence[types.Part]:
    """Return the parts above a summary, which hold the task; all parts of any other content."""
    parts = content.parts or []
    ends = (index for index, part in enumerate(parts) if _SUMMED_UP.match(part.text or ""))
    return parts[: next(ends, len(parts))]
