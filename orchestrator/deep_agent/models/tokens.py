"""How many tokens messages have: as the service reported it, else estimated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.events import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.base_tool import BaseTool
from google.genai import types
from pydantic import BaseModel

from ..adk_internals import tool_declaration

DEFAULT_WINDOW_TOKENS = 128_000
"""The window of a model that is not in the table: most models have at least this much."""

CHARACTERS_PER_TOKEN = 4
"""The usual rule of thumb for English and code."""

ANSWER_TOKENS = 8_192
"""The assumed size of a reply where the request sets no limit: ADK's default for Claude."""

INPUT_MARGIN = 4 / 3
"""Factor on the estimate of a request's size: code and most languages have fewer characters per
token than English."""

MEDIA_TOKENS = 1_000
"""An image, by the providers' rules of thumb; its base64 text would be estimated a thousand times
too high."""

SIDE_CALLS = "side_calls"
"""The metadata of an event with results: the model calls that tools have made for them."""

MODEL_CALLS = "model_calls"
"""Key of a summary event's metadata: the number of model calls that wrote it."""


def count_message_tokens(content: types.Content | None) -> int:
    """Return the estimated size of a message."""
    parts = (content.parts if content else None) or []
    return sum(map(_part_characters, parts)) // CHARACTERS_PER_TOKEN


def count_tokens(events: Iterable[Event]) -> int:
    """Return the estimated size of messages together."""
    return sum(count_message_tokens(event.content) for event in events)


def reported_tokens(event: Event, agent_name: str) -> int | None:
    """Return the size of the agent's context after a reply, as its service reported it."""
    usage = event.usage_metadata
    if event.author != agent_name or usage is None or not usage.prompt_token_count:
        return None
    return usage.prompt_token_count + (usage.candidates_token_count or 0)


def counted_tokens(events: Sequence[Event], agent_name: str, scope: str | None) -> int | None:
    """Return the last reported size since the newest summary, plus an estimate of later messages.

    None if no size was reported since then.
    """
    added = 0
    for event in _since_summary(events, scope):
        if (reported := reported_tokens(event, agent_name)) is not None:
            return reported + added
        added += count_message_tokens(event.content)
    return None


def counts_since_summary(
    events: Sequence[Event], agent_name: str, scope: str | None
) -> Iterator[int]:
    """Yield the sizes that the service reported since the newest summary, newest first."""
    for event in _since_summary(events, scope):
        if (reported := reported_tokens(event, agent_name)) is not None:
            yield reported


def _since_summary(events: Sequence[Event], scope: str | None) -> Iterator[Event]:
    """Yield the events after the newest summary, newest first."""
    for event in reversed(events):
        if event.isolation_scope == scope:
            if event.actions.compaction:
                return
            yield event


def messages_since_summary(events: Sequence[Event], scope: str | None) -> int:
    """Return an upper bound on the messages that no summary has replaced."""
    count, end = 0, 0.0
    for event in reversed(events):
        if event.timestamp <= end:
            break
        if event.actions.compaction and event.isolation_scope == scope:
            end = max(end, event.actions.compaction.end_timestamp)
        count += event.content is not None
    return count


async def fixed_tokens(context: InvocationContext, request: LlmRequest) -> int:
    """Return the estimated size of the system instruction and the tools' declarations."""
    agent, tools = context.agent, list[BaseTool]()
    if isinstance(agent, LlmAgent):
        tools = await agent.canonical_tools(ReadonlyContext(context))
    declared = map(tool_declaration, tools)
    return count_fixed_tokens(declared, request)


def count_fixed_tokens(declared: Iterable[BaseModel | None], request: LlmRequest) -> int:
    """Return the estimated size of declarations and of a request's system instruction."""
    texts = [found.model_dump_json(exclude_none=True) for found in declared if found]
    texts.append(str(request.config.system_instruction or ""))
    return sum(map(len, texts)) // CHARACTERS_PER_TOKEN


def request_tokens(request: LlmRequest) -> int:
    """Return the estimated size of a request and its reply, in tokens; rather too many."""
    answer = request.config.max_output_tokens or ANSWER_TOKENS
    return round(input_tokens(request) * INPUT_MARGIN) + answer


def input_tokens(request: LlmRequest) -> int:
    """Return the estimated size of a request, in tokens; rather too few."""
    tools = [tool for tool in request.config.tools or [] if isinstance(tool, types.Tool)]
    return count_fixed_tokens(tools, request) + sum(map(count_message_tokens, request.contents))


def characters(value: Any) -> int:
    """Return the approximate length of a JSON value as text."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        if value.get("type") == "image":
            return MEDIA_TOKENS * CHARACTERS_PER_TOKEN
        # Each key has two quotes, a colon and a comma around it.
        return sum(len(str(key)) + 4 + characters(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return sum(1 + characters(item) for item in value)
    return len(str(value))


def _part_characters(part: types.Part) -> int:
    if part.thought:
        return 0
    size = len(part.text or "")
    if (call := part.function_call) is not None:
        size += len(call.name or "") + characters(call.args or {})
    if (answer := part.function_response) is not None:
        size += len(answer.name or "") + characters(answer.response or {})
    if part.inline_data or part.file_data:
        size += MEDIA_TOKENS * CHARACTERS_PER_TOKEN
    return size


@dataclass(frozen=True, kw_only=True)
class ModelUsage:
    """What a run has used."""

    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Input tokens that the provider read from its cache."""
    tool_calls: int = 0
    cost_usd: float | None = None
    """None if no price is known."""

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens

    def plus(self, other: ModelUsage) -> ModelUsage:
        """Return the sum of two usages."""
        costs = [cost for cost in (self.cost_usd, other.cost_usd) if cost is not None]
        return ModelUsage(
            model_calls=self.model_calls + other.model_calls,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            tool_calls=self.tool_calls + other.tool_calls,
            cost_usd=sum(costs) if costs else None,
        )


def reply_usage(response: LlmResponse) -> ModelUsage:
    """Return the tokens that a reply, or an event, reports."""
    metadata = response.usage_metadata
    if metadata is None:
        return ModelUsage()
    read = metadata.prompt_token_count or 0
    thoughts_and_text = (metadata.candidates_token_count or 0) + (
        metadata.thoughts_token_count or 0
    )
    # ADK counts OpenAI's thoughts twice, as thoughts and as candidates; the total is always right.
    written = metadata.total_token_count - read if metadata.total_token_count else thoughts_and_text
    return ModelUsage(
        input_tokens=read,
        output_tokens=max(written, 0),
        cached_tokens=metadata.cached_content_token_count or 0,
    )


def summary_calls(event: Event) -> int:
    """Return how many model calls wrote an event's summary; 0 for an event without a summary."""
    return int((event.custom_metadata or {}).get(MODEL_CALLS, 0)) if event.actions.compaction else 0


def side_calls(event: Event) -> list[tuple[str, ModelUsage]]:
    """Return the models that tools asked for an event's results, each call with what it used."""
    noted = (event.custom_metadata or {}).get(SIDE_CALLS, ())
    return [(one["model"], ModelUsage(**{**one["used"], "model_calls": 1})) for one in noted]


def note_side_calls(event: Event, calls: Iterable[tuple[str, ModelUsage]]) -> None:
    """Note in an event with results what model calls of tools have used for them."""
    noted = [
        {
            "model": model,
            "used": {
                "input_tokens": used.input_tokens,
                "output_tokens": used.output_tokens,
                "cached_tokens": used.cached_tokens,
            },
        }
        for model, used in calls
    ]
    metadata = event.custom_metadata or {}
    if noted:
        event.custom_metadata = {**metadata, SIDE_CALLS: [*metadata.get(SIDE_CALLS, ()), *noted]}
