"""A parent's conversation as a sub-agent sees it that was made with `context="fork"`.

The messages are those of another agent for it, so ADK shows them as text: no call of the parent
can be taken for one of its own, whatever tools and model it has. It gets copies; nothing of what it
does comes into the parent's conversation but its result.
"""

from __future__ import annotations

from google.adk.agents.invocation_context import InvocationContext
from google.adk.events import Event, EventActions
from google.genai import types

from fanout.orchestrator.deep_agent.guards.dangling_calls import (
    answered,
    is_frameworks,
    unanswered_calls,
)
from fanout.orchestrator.deep_agent.prompts import FORKED_CALL

PARENT = "parent"
"""The name under which a child sees the messages of its parent."""


def conversation_of(parent: InvocationContext) -> list[Event]:
    """Return copies of a conversation's messages and summaries, with its open calls answered.

    Args:
        parent: The parent's run, in which the call was made that forks.
    """
    branch = parent.branch or ""
    visible = [event for event in parent.session.events if branch.startswith(event.branch or "")]
    events = [copy for event in visible if (copy := _copied(event)) is not None]
    # All of them are calls of the parent's last reply.
    open_calls = unanswered_calls(events)
    return [*events, answered(open_calls, FORKED_CALL)] if open_calls else events


def _copied(event: Event) -> Event | None:
    """Return a message or summary without what belongs to the parent's session only."""
    parts = [part for part in (event.content.parts if event.content else None) or [] if _kept(part)]
    compaction = event.actions.compaction
    if event.partial or not (parts or compaction):
        return None
    return Event(
        author="user" if event.author == "user" else PARENT,
        invocation_id=event.invocation_id,
        timestamp=event.timestamp,
        content=types.Content(role=event.content.role, parts=parts) if event.content else None,
        actions=EventActions(compaction=compaction),
    )


def _kept(part: types.Part) -> bool:
    """Return whether a part is no thought, and no question of ADK's to a person."""
    if part.function_call is not None:
        return not is_frameworks(part.function_call)
    if part.function_response is not None:
        name = part.function_response.name
        return not is_frameworks(types.FunctionCall(name=name))
    return not part.thought
