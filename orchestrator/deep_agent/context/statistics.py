"""What summaries did to a conversation: in each summary's event, and summed up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from google.adk.events import Event

from fanout.orchestrator.deep_agent.models.size import tokens_in, tokens_of

CONTEXT_SUMMARY = "context_summary"
"""Key of a summary event's metadata: the fields of its `ContextSummary`."""

CONTEXT_THRESHOLD = "context_threshold"
"""Key beside it: the size in tokens at which the conversation was summed up."""

MAX_FILES = 20
"""Paths in an event's statistics, the last changed; S1's limit."""


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
class ContextStats:
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


def context_stats(events: Iterable[Event]) -> ContextStats:
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
    return ContextStats(
        total_tokens=tokens_in(summary) + tokens_of(messages),
        message_count=len(messages),
        threshold=threshold if isinstance(threshold, int) else None,
        summary_count=len(made),
        messages_summarized=sum(each.messages_summarized for each in made),
        original_token_count=sum(each.original_token_count for each in made),
        summarized_token_count=sum(each.summarized_token_count for each in made),
        tokens_saved=sum(each.tokens_saved for each in made),
    )
