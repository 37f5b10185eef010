"""How many sub-agents run at the same time in this process, and for how long."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

MAX_DEPTH = 3
"""Levels of sub-agents below an agent: deeper trees multiply costs and lose the original task."""

ABANDON_SECONDS = 2.0
"""How long a sub-agent that was stopped may take to end, after which it is left behind: enough to
kill a command and its processes on a busy machine."""


@dataclass(frozen=True, kw_only=True)
class SubAgentLimits:
    """The limits of the sub-agents below one agent, which they hand down to their own.

    Raises:
        ValueError: A limit is not above zero.
    """

    max_concurrent: int = 8
    """Children of one agent that run at the same time; others wait in order. A few agents already
    reach a provider's rate limit, and each holds its conversation in memory."""
    timeout_seconds: float | None = 300.0
    """How long a task may take for which the model names no limit; None for no limit. Five minutes
    are dozens of steps, and one that hangs would otherwise block its parent for ever."""
    tasks_timeout_seconds: float | None = 600.0
    """How long one call of `tasks` may take, waiting for a free place included; None for no limit.
    Twice that of one task, because a second round of tasks may have to wait for the first."""

    def __post_init__(self) -> None:
        """Reject what is not above zero."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{field.name} is {value}: it has to be above zero.")
