"""When an agent's long conversation is summed up: the key `summarization` of a definition."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from orchestrator.jobs.spec import WireModel


def _possible(size: tuple[str, float]) -> tuple[str, float]:
    kind, amount = size
    if amount <= 0 or (kind == "fraction" and amount > 1):
        raise ValueError(f"there is no {kind} {amount:g}")
    return size


Size = Annotated[tuple[Literal["fraction", "tokens", "messages"], float], AfterValidator(_possible)]
"""So much of the model's window, so many tokens, or so many messages: `[fraction, 0.85]`."""


class SummarizationDefinition(WireModel):
    """What is not set is the deep agent's default."""

    trigger: Size | None = None
    """The size at which the older part of a conversation is replaced by a summary."""
    keep: Size | None = None
    """The newest part, which stays as it is."""
    model: str | None = None
    """Who writes the summary; the agent's own model when not set."""
    window_tokens: int | None = Field(default=None, gt=0)
    """The window of the agent's model, where no table knows it."""

    def settings(self) -> dict[str, Any]:
        """What is set, as the deep agent's configuration takes it."""
        return self.model_dump(exclude_none=True)
