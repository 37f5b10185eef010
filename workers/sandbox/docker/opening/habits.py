"""Whether jobs use the sandboxes that were expected for them: what has been seen decides."""

from __future__ import annotations

from collections import OrderedDict

_LIKELY = 0.5
"""The least share of jobs that use theirs: below, starting ahead costs more than it saves."""
_NEWEST_SHARE = 0.2
"""The weight of the newest job: four in a row that used none stop the starts for their agent."""
_MOST_AGENTS = 256
"""Remembered: more than an installation defines."""


class Habits:
    """The share of the jobs of each agent that opened the sandbox that was expected for them."""

    def __init__(self) -> None:
        self._shares: OrderedDict[str, float] = OrderedDict()

    def is_likely(self, agent: str) -> bool:
        """Return whether a job of this agent probably uses a sandbox; a new agent's does."""
        return self._shares.get(agent, 1.0) >= _LIKELY

    def record(self, agent: str, *, used: bool) -> None:
        """Record whether a job used the sandbox that was expected for it."""
        share = self._shares.pop(agent, 1.0)
        self._shares[agent] = share + _NEWEST_SHARE * (used - share)
        if len(self._shares) > _MOST_AGENTS:
            self._shares.popitem(last=False)
