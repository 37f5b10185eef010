"""How often an agent may make the same call in a row: the key `loops` of a definition."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from fanout.orchestrator.jobs.spec import WireModel


class LoopLimitsDefinition(WireModel):
    """The limits of one tool; unset ones have the deep agent's default."""

    max_same: int | None = Field(default=None, ge=1)
    """Calls in a row with the same arguments and result that are executed."""
    stop_after: int | None = Field(default=None, ge=2)
    """After this many the run ends."""
    max_changing: int | None = Field(default=None, ge=1)
    """Calls in a row that are executed while their results change."""

    @model_validator(mode="after")
    def _warns_before_it_ends(self) -> Self:
        if (self.max_same is None) != (self.stop_after is None):
            raise ValueError("give max_same and stop_after together")
        if self.max_same and self.stop_after and self.stop_after <= self.max_same:
            raise ValueError("stop_after must be above max_same, so that a warning comes first")
        return self


class LoopDefinition(LoopLimitsDefinition):
    """The limits of all tools, and the exceptions."""

    exempt: tuple[str, ...] | None = None
    """Names of tools that are never refused, with `*` for any characters."""
    per_tool: dict[str, LoopLimitsDefinition] | None = None
    """Tools with limits of their own, by name."""

    def settings(self) -> dict[str, Any]:
        """Return the set values as arguments of the deep agent's policy."""
        return self.model_dump(exclude_none=True)
