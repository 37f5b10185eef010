"""How often the same call may be made in a row."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fanout.orchestrator.deep_agent.tool import is_polling

MAX_SAME_CALLS = 4
"""How often in a row the same call with the same arguments and result is executed; after that it
gets only a warning. Looking again after a failure, or at a file that is still growing, is ordinary
work."""

MAX_REPEATED_CALLS = 8
"""After this many the run ends: a model that ignores four warnings wastes its budget."""

MAX_SAME_COMMANDS = 10
"""As MAX_SAME_CALLS for `execute`: a command that waits for a build prints the same until the build
is done."""

MAX_REPEATED_COMMANDS = 20
"""As MAX_REPEATED_CALLS for `execute`."""

MAX_CHANGING_CALLS = 50
"""Calls in a row that are executed while their results change: a result with a time in it always
changes, so there has to be an end."""

SNAPSHOTS = ("*snapshot*", "*screenshot*")
"""Tools that look at something which others change, such as a browser's page."""


class LoopLimits(BaseModel):
    """How often one tool may be called in a row with the same arguments."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_same: int = Field(default=MAX_SAME_CALLS, ge=1)
    """Calls with the same result that are executed; after that a call gets only a warning."""
    stop_after: int = Field(default=MAX_REPEATED_CALLS, ge=2)
    """Calls with the same result, warnings included, after which the run ends."""
    max_changing: int = Field(default=MAX_CHANGING_CALLS, ge=1)
    """Calls that are executed while their results change."""

    @model_validator(mode="after")
    def _warns_before_it_ends(self) -> Self:
        if self.stop_after <= self.max_same:
            raise ValueError("stop_after must be above max_same, so that a warning comes first")
        return self

    def refuses(self, same: int, calls: int) -> bool:
        """Return whether a call is refused.

        Args:
            same: The calls in a row with the same result, with this one.
            calls: The calls in a row.
        """
        return same > self.max_same or calls > self.max_changing

    def left(self, same: int, calls: int) -> int:
        """Return after how many more calls the run ends."""
        changing = self.max_changing + self.stop_after - self.max_same
        return max(0, min(self.stop_after - same, changing - calls))

    def ends(self, same: int, calls: int) -> bool:
        """Return whether the run ends."""
        return self.left(same, calls) == 0


COMMANDS = LoopLimits(max_same=MAX_SAME_COMMANDS, stop_after=MAX_REPEATED_COMMANDS)
"""The limits of `execute`."""


class LoopPolicy(LoopLimits):
    """The limits of all tools, and the exceptions."""

    exempt: tuple[str, ...] = SNAPSHOTS
    """Names of tools that are never refused, with `*` for any characters. Tools that are made to be
    called again, such as `check_task`, are exempt as well."""
    per_tool: Mapping[str, LoopLimits] = Field(default_factory=lambda: {"execute": COMMANDS})
    """Tools with limits of their own, by name."""

    def limits(self, name: str, tool: Any = None) -> LoopLimits | None:
        """Return a tool's limits; None for one that is exempt.

        Args:
            name: The tool's name.
            tool: The tool; None for one that does not exist.
        """
        if name in self.per_tool:
            return self.per_tool[name]
        if any(fnmatchcase(name, pattern) for pattern in self.exempt):
            return None
        if tool is not None and is_polling(tool):
            return None
        if getattr(tool, "only_looks", False):
            # A server says so itself, so it is believed only up to a limit.
            more = self.stop_after - self.max_same
            return LoopLimits(
                max_same=self.max_changing,
                stop_after=self.max_changing + more,
                max_changing=self.max_changing,
            )
        return self
