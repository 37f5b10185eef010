"""What a deep agent is put together from.

Parts, each with tools, words for the prompt and callbacks.

A part overrides what it needs. `create.py` lists the parts in order; for one hook ADK asks them in
that order and stops at the first answer that is not None, so a part that only watches returns None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.flows.llm_flows._base_llm_processor import BaseLlmRequestProcessor
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext

from orchestrator.deep_agent.backends.protocol import Backend

BackendSource = Callable[[Any], Backend]
"""The agent's files, found from an ADK context (anything with a `state`)."""


class Part:
    """One ability of a deep agent; every hook is optional."""

    def tools(self) -> Sequence[BaseTool]:
        """The tools that it brings."""
        return ()

    async def instruction(self, context: ReadonlyContext, tools: frozenset[str]) -> str:
        """Its words in the system instruction, for an agent that has these tools; empty for none.

        Asked before every model call. What changes during a run costs the provider's prompt cache,
        so parts whose words change stand last.
        """
        del context, tools
        return ""

    def request_processors(self) -> Sequence[BaseLlmRequestProcessor]:
        """What is done to the session before a request's contents are made from it."""
        return ()

    async def before_agent(self, callback_context: CallbackContext) -> None:
        """Get ready, once for each run; what is raised ends it."""

    async def before_model(
        self, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Change the request in place, or answer in the model's stead."""

    async def after_model(
        self, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        """Watch or replace a reply; a partial one is a display hint only."""

    async def on_model_error(
        self, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> LlmResponse | None:
        """Answer for a model that failed; None lets the failure end the run."""

    async def before_tool(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Watch a call, change its arguments in place, or answer in the tool's stead."""

    async def after_tool(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, tool_response: Any
    ) -> dict[str, Any] | None:
        """Watch a result, change it in place, or replace it."""

    async def on_tool_error(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, error: Exception
    ) -> dict[str, Any] | None:
        """Turn what a tool raised into words for the model; None lets it end the run."""


def hooks(parts: Sequence[Part], name: str) -> list[Callable[..., Any]]:
    """The parts' callbacks of that name, of those parts that have one."""
    return [
        getattr(part, name)
        for part in parts
        if getattr(type(part), name) is not getattr(Part, name)
    ]
