"""The messages that an agent's model sees, where a summary may cut them, and what summaries did.

ADK replaces all messages within the time range of a compaction event by the summary in the event.
So a cut is safe where no call is open, and where every message before it is older than every
message after it. Each summary's event has its statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from google.adk.agents.invocation_context import InvocationContext
from google.adk.events import Event, EventActions
from google.adk.events.event_actions import EventCompaction
from google.genai import types

from ..adk_internals import (
    call_ids,
    is_in_context,
    is_of_tool_branch,
    self_contained_prefix,
    without_rewound,
)
from ..models.tokens import MODEL_CALLS, count_message_tokens, count_tokens
from .summarizer import SideCallAccount

TIMESTAMP_STEP_SECONDS = 1e-6
"""The finest step that every session store preserves."""

FROM_THE_BEGINNING = 0.0
"""Where each summary's range starts: it replaces everything before its cut, the previous summary
included."""

CONTEXT_SUMMARY = "context_summary"
"""Key of a summary event's metadata: the fields of its `ContextSummary`."""

CONTEXT_THRESHOLD = "context_threshold"
"""The key next to it: the size in tokens at which the conversation was summarized."""

MAX_FILES = 20
"""Paths in an event's statistics, the last changed; S1's limit."""


def put_in_order(events: Sequence[Event]) -> None:
    """Make the events' times strictly increasing, in place.

    They are not if two hosts' clocks differ or a clock is set back, and the model would not see a
    message that seems older than the newest summary. The same events always get the same times.
    """
    last = FROM_THE_BEGINNING
    for event in events:
        if event.timestamp <= last:
            event.timestamp = later_than(last, event.timestamp)
        last = event.timestamp


def later_than(last: float, timestamp: float) -> float:
    """Return the time of an event that follows one at the time `last`, in seconds."""
    return timestamp if timestamp > last else last + TIMESTAMP_STEP_SECONDS


@dataclass(frozen=True, kw_only=True)
class AgentConversation:
    """The messages of one agent in a session, oldest first."""

    messages: Sequence[Event]
    """All messages, including those that a summary replaced."""
    summary: Event | None
    """The newest summary's event."""
    shown_from: int
    """The index of the first message that no summary replaced."""

    @property
    def shown(self) -> Sequence[Event]:
        """The messages that no summary replaced."""
        return self.messages[self.shown_from :]

    @property
    def summary_content(self) -> types.Content | None:
        """The content that the model sees in place of the others; None without a summary."""
        compaction = self.summary.actions.compaction if self.summary else None
        return compaction.compacted_content if compaction else None

    @property
    def tokens(self) -> int:
        """The estimated size of what the model sees, without system instruction and tools."""
        return count_message_tokens(self.summary_content) + count_tokens(self.shown)

    def safe_cut(self, wanted: int) -> int:
        """Return the last index up to `wanted` at which no call is open; 0 if there is none.

        A call is open while it waits for its result or for a person's approval.
        """
        return len(self_contained_prefix(self.messages[:wanted], self.messages))


def agent_conversation(
    context: InvocationContext, *, shown_only: bool = False
) -> AgentConversation:
    """Return the messages from which ADK makes the contents of the next request.

    Args:
        context: The run.
        shown_only: Leave out those that a summary replaced, which is faster in a long session.
    """
    events = without_rewound(context.session.events)
    summaries = (event for event in reversed(events) if event.actions.compaction)
    summary = next((event for event in summaries if _is_seen(event, context)), None)
    compaction = summary.actions.compaction if summary else None
    end = compaction.end_timestamp if compaction else 0.0
    if shown_only:
        events = [event for event in events if event.timestamp > end]
    calls = call_ids(events)
    messages = [event for event in events if _is_message(event, context, calls)]
    shown_from = sum(event.timestamp <= end for event in messages)
    return AgentConversation(messages=messages, summary=summary, shown_from=shown_from)


def _is_message(event: Event, context: InvocationContext, calls: set[str]) -> bool:
    name = context.agent.name if context.agent else ""
    return (
        event.actions.compaction is None
        and _is_seen(event, context)
        and not is_of_tool_branch(context.branch, event, name, calls)
    )


def _is_seen(event: Event, context: InvocationContext) -> bool:
    return is_in_context(
        context.branch, event, context.isolation_scope, node_path=context.node_path
    )


def tail_start(messages: Sequence[Event], keep_tokens: int) -> int:
    """Return the index of the first of the newest messages to keep; the last is always kept.

    Args:
        messages: All messages.
        keep_tokens: How many tokens to keep.
    """
    left = keep_tokens
    for index in range(len(messages) - 1, -1, -1):
        left -= count_message_tokens(messages[index].content)
        if left < 0:
            return min(index + 1, len(messages) - 1)
    return 0


def compaction_event(
    context: InvocationContext,
    conversation: AgentConversation,
    cut: int,
    *,
    content: types.Content,
    state_delta: dict[str, Any],
    calls: SideCallAccount,
    statistics: ContextSummary,
    threshold: int | None,
) -> Event:
    """Return the event that replaces all messages before `cut` by `content`.

    Args:
        context: The run.
        conversation: Its messages.
        cut: The index of the first message that is not replaced.
        content: The content in their place.
        state_delta: Changes of the session's state.
        calls: The model calls that wrote the summary.
        statistics: What the summary replaces.
        threshold: The size in tokens at which the conversation is summed up, if tokens count.
    """
    last, first_kept = conversation.messages[cut - 1], conversation.messages[cut]
    compaction = EventCompaction(
        start_timestamp=FROM_THE_BEGINNING,
        # Between the two, so that neither is lost in a store that rounds times.
        end_timestamp=(last.timestamp + first_kept.timestamp) / 2,
        compacted_content=content,
    )
    return Event(
        author=context.agent.name if context.agent else "",
        invocation_id=context.invocation_id,
        branch=context.branch,
        isolation_scope=context.isolation_scope,
        usage_metadata=calls.usage,
        model_version=calls.model_version,
        custom_metadata={
            MODEL_CALLS: calls.count,
            CONTEXT_SUMMARY: statistics.metadata(),
            CONTEXT_THRESHOLD: threshold,
        },
        actions=EventActions(compaction=compaction, state_delta=state_delta),
    )


@dataclass(frozen=True, kw_only=True)
class ContextSummary:
    """One summary: what it replaced, and what took its place."""

    messages_summarized: int
    original_token_count: int
    """The estimated size of these messages and of the summary before them."""
    summarized_token_count: int
    """The estimated size of what replaced them: task, summary and facts."""
    key_decisions: tuple[str, ...] = ()
    files_modified: tuple[str, ...] = ()
    """The last changed files, by path."""
    by_model: bool = True
    """False if no model wrote it: it has the last messages and the key decisions."""

    @property
    def tokens_saved(self) -> int:
        """How much shorter the next request is."""
        return self.original_token_count - self.summarized_token_count

    def metadata(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        fields = asdict(self)
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in fields.items()
        }


@dataclass(frozen=True, kw_only=True)
class ConversationStats:
    """A conversation as its model sees it, and its summaries together."""

    total_tokens: int = 0
    """The estimated size of what the model sees: the newest summary, and the messages after it."""
    message_count: int = 0
    """These messages."""
    threshold: int | None = None
    """The size in tokens at which it is summed up; None: it never was, or messages are counted."""
    summary_count: int = 0
    messages_summarized: int = 0
    original_token_count: int = 0
    summarized_token_count: int = 0
    tokens_saved: int = 0


def context_summary(event: Event) -> ContextSummary | None:
    """Return the statistics of an event's summary; None for any other event."""
    found = (event.custom_metadata or {}).get(CONTEXT_SUMMARY)
    if event.actions.compaction is None or not isinstance(found, dict):
        return None
    lists = {name: tuple(found.get(name) or ()) for name in ("key_decisions", "files_modified")}
    return ContextSummary(**{**found, **lists})


def context_stats(events: Iterable[Event]) -> ConversationStats:
    """Return the statistics of a session of one agent.

    Args:
        events: The session's events.
    """
    events = list(events)
    made = [found for event in events if (found := context_summary(event)) is not None]
    newest = next((event for event in reversed(events) if event.actions.compaction), None)
    compaction = newest.actions.compaction if newest else None
    end = compaction.end_timestamp if compaction else 0.0
    messages = [
        event
        for event in events
        if event.content and event.actions.compaction is None and event.timestamp > end
    ]
    summary = compaction.compacted_content if compaction else None
    threshold = ((newest.custom_metadata if newest else None) or {}).get(CONTEXT_THRESHOLD)
    return ConversationStats(
        total_tokens=count_message_tokens(summary) + count_tokens(messages),
        message_count=len(messages),
        threshold=threshold if isinstance(threshold, int) else None,
        summary_count=len(made),
        messages_summarized=sum(each.messages_summarized for each in made),
        original_token_count=sum(each.original_token_count for each in made),
        summarized_token_count=sum(each.summarized_token_count for each in made),
        tokens_saved=sum(each.tokens_saved for each in made),
    )
