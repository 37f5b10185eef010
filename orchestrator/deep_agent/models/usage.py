"""What calls of models consume, by what their replies say."""

from __future__ import annotations

from dataclasses import dataclass

from google.adk.events import Event
from google.adk.models.llm_response import LlmResponse

MODEL_CALLS = "model_calls"
"""Key of a summary event's metadata: how many model calls made it."""


@dataclass(frozen=True, kw_only=True)
class ModelUsage:
    """What a run has consumed."""

    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Of the input tokens, those that the provider had in its cache."""
    tool_calls: int = 0
    cost_usd: float | None = None
    """None while no price is known."""

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens

    def plus(self, other: ModelUsage) -> ModelUsage:
        """The sum of two usages."""
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
    """What a reply says of its tokens; an ADK event is one too."""
    metadata = response.usage_metadata
    if metadata is None:
        return ModelUsage()
    read = metadata.prompt_token_count or 0
    thought_and_said = (metadata.candidates_token_count or 0) + (metadata.thoughts_token_count or 0)
    # ADK counts OpenAI's thoughts twice, as thoughts and as said; the total is right for all.
    written = metadata.total_token_count - read if metadata.total_token_count else thought_and_said
    return ModelUsage(
        input_tokens=read,
        output_tokens=max(written, 0),
        cached_tokens=metadata.cached_content_token_count or 0,
    )


def summary_calls(event: Event) -> int:
    """How many model calls an event stands for that a summary was made with.

    0 for any other event.
    """
    return int((event.custom_metadata or {}).get(MODEL_CALLS, 0)) if event.actions.compaction else 0
