"""The instructions that every deep agent gets: how it works and reports."""

from __future__ import annotations

from google.adk.agents.readonly_context import ReadonlyContext

from fanout.orchestrator.deep_agent import prompts
from fanout.orchestrator.deep_agent.middleware import Middleware


class BaseInstructions(Middleware):
    """The agent's own prompt, general instructions, and how a sub-agent ends.

    Args:
        own: The agent's own prompt.
        is_subagent: Whether another agent reads the result.
        for_model: What its model needs to be told.
    """

    def __init__(self, own: str | None, *, is_subagent: bool, for_model: str = "") -> None:
        parts = [own.strip() + "\n"] if own and own.strip() else []
        parts.append(prompts.WORK + for_model)
        if is_subagent:
            parts.append(prompts.SUBAGENT)
        self._text = "\n".join(parts)

    async def instruction(self, context: ReadonlyContext, tools: frozenset[str]) -> str:
        """Return the instructions, which never change."""
        del context, tools
        return self._text
