"""The conversation that a child inherits: its caller's messages, as the caller's model saw them.

The child's first request begins with them, byte for byte, so that a provider's cache of the
caller's requests serves the child too. So all that shapes a request is kept: thoughts and their
signatures, calls, results, summaries and the times of events. What belongs to the caller's session
only is left out: its plan and other state, and its questions to people.

The calls of the last reply, of which the child is one, have no results yet. Each gets the same
sentence as its result, so that all children of a reply begin alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from google.adk.events import Event, EventActions
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from ..adk_internals import without_rewound
from ..backends.state import KEY_PREFIX
from ..context.compaction import later_than
from ..context.eviction import CONVERSATION_HISTORY, LARGE_TOOL_RESULTS, TASK_RESULTS
from ..dangling_calls import answered, is_frameworks, unanswered_calls
from ..inbox import without_message_number
from ..messages import event_with_call
from ..prompts import INHERITED_CALL

Inherit = Literal["conversation"]
"""What a task may inherit from its caller."""

_KEPT_FILES = tuple(
    f"{KEY_PREFIX}{folder}/" for folder in (LARGE_TOOL_RESULTS, TASK_RESULTS, CONVERSATION_HISTORY)
)
"""Keys of the state with files that the messages name."""


def inherited_conversation(
    events: Sequence[Event], call_id: str, *, caller: str, child: str
) -> list[Event]:
    """Return copies of a conversation up to a reply, as a child's own, with its calls answered.

    The same arguments always give equal copies.

    Args:
        events: The caller's events.
        call_id: The call that begins the child, of the reply.
        caller: The caller's name as an identifier.
        child: That of the child. What other agents said stays theirs.
    """
    reply = event_with_call(events, call_id)
    until = [*events] if reply is None else [*events[: events.index(reply) + 1]]
    names = {caller: child}
    copies = [
        copy
        for event in without_rewound(until)
        if (copy := _copied(event, names.get(event.author, event.author))) is not None
    ]
    open_calls = [one for one in unanswered_calls(copies) if one.event is copies[-1]]
    if not open_calls:
        return copies
    answers = answered(open_calls, INHERITED_CALL)
    answers.id = f"{copies[-1].id}-inherited"
    answers.timestamp = later_than(copies[-1].timestamp, copies[-1].timestamp)
    return [*copies, answers]


def conversation_of_call(context: ToolContext, child: str) -> list[Event]:
    """Return the conversation that a child inherits which a call is about to begin.

    Args:
        context: The context of the call.
        child: The child's name as an identifier.
    """
    parent = context.get_invocation_context()
    branch = parent.branch or ""
    events = [one for one in parent.session.events if branch.startswith(one.branch or "")]
    call_id = str(context.function_call_id)
    return inherited_conversation(events, call_id, caller=context.agent_name, child=child)


def _copied(event: Event, author: str) -> Event | None:
    """Return a message or a summary as a child's; None for any other event."""
    parts = [part for part in (event.content.parts if event.content else None) or [] if _kept(part)]
    files = {
        key: value
        for key, value in event.actions.state_delta.items()
        if key.startswith(_KEPT_FILES)
    }
    compaction = event.actions.compaction
    if event.partial or not (parts or files or compaction):
        return None
    content = (
        types.Content(role=event.content.role, parts=parts) if event.content and parts else None
    )
    kept: dict[str, Any] = {
        "id": event.id,
        "invocation_id": event.invocation_id,
        "timestamp": event.timestamp,
        "model_version": event.model_version,
        "usage_metadata": event.usage_metadata,  # the size of the context, as reported
        "error_code": event.error_code,
        "error_message": event.error_message,
        "custom_metadata": without_message_number(event).custom_metadata,
    }
    actions = EventActions(compaction=compaction, state_delta=files)
    return Event(author=author, content=content, actions=actions, **kept)


def _kept(part: types.Part) -> bool:
    """Return whether a part is no question of ADK's to a person, and no answer to one."""
    named = part.function_call or part.function_response
    return named is None or not is_frameworks(types.FunctionCall(name=named.name))
