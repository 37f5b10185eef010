"""`think`: a place to reflect between two steps."""

from __future__ import annotations

from typing import Any

from google.adk.tools.tool_context import ToolContext

from ...deep_agent import MethodTool


class Think:
    """Reflects; give `Think().tool()` to an agent whose model does not reason on its own."""

    def tool(self) -> MethodTool:
        """Return the tool for an agent."""
        return MethodTool(self.think)

    async def think(self, reflection: str, *, tool_context: ToolContext) -> dict[str, Any]:
        """Write down what you know, what is missing, and what you do next.

        Use it after each result of a search, before the next one. It changes nothing.
        """
        del reflection, tool_context
        return {"status": "success"}
