"""When an agent's sandbox is opened: just before the first calls that need it.

A reply is appended to the journal once the sandbox is open that its calls need. One that cannot be
opened leaves no call in the conversation that looks as if it had been interrupted: the next attempt
asks the model again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin

from fanout.orchestrator.approvals import parse_policy
from fanout.orchestrator.configuration.agent_definitions import AgentDefinition
from fanout.orchestrator.configuration.known_names import BUILT_IN_TOOLS
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.workers.sandbox import LazySandbox

SANDBOX_TOOLS = frozenset(BUILT_IN_TOOLS) - {
    "compact_conversation",
    "read_todos",
    "task",
    "write_todos",
}
"""The built-in tools that work on files or run commands."""


def unguarded_tools(spec: JobSpec, definition: AgentDefinition) -> frozenset[str]:
    """Return the tools of the sandbox that run without a person's approval."""
    guarded = {*parse_policy(spec.interrupt_on), *parse_policy(definition.interrupt_on)}
    return SANDBOX_TOOLS - guarded


class OpeningPlugin(BasePlugin):
    """Opens the sandbox when a reply calls one of the tools.

    Args:
        sandbox: The job's sandbox.
        tools: The tools that need it at once.
    """

    def __init__(self, sandbox: LazySandbox, tools: Collection[str]) -> None:
        super().__init__(name="sandbox_opening")
        self._sandbox = sandbox
        self._tools = frozenset(tools)

    async def after_model_callback(
        self, *, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> None:
        """Open the sandbox before the calls of a whole reply are known to anybody.

        Raises:
            JobFailure: It could not be opened.
        """
        del callback_context
        content = llm_response.content
        parts: Any = (content and content.parts) or ()
        called = {part.function_call.name for part in parts if part.function_call}
        if not llm_response.partial and called & self._tools:
            await self._sandbox.opened()
