"""Token usage, as the replies of models report it."""

from __future__ import annotations

from dataclasses import dataclass

from google.adk.events import Event
from google.adk.models.llm_response import LlmResponse

MODEL_CALLS = "model_calls"
"""Key of a summary event's metadata: the number of model calls that wrote it."""


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
