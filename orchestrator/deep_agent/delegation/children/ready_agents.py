"""Ready agents as sub-agents: their parent's approval policy, and where their answer is found.

The policy binds every LlmAgent below a ready agent. In those that ADK's own agents run, the gate
comes after the agent's callbacks, so that it sees a call as it would run. A plugin checks all
others: agents that a custom agent keeps in its fields, nodes of a workflow, agents that are tools.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from google.adk.agents import LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.agents.base_agent import BaseAgent
from google.adk.events import Event
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import BaseNode

from fanout.orchestrator.approvals import InterruptOn
from fanout.orchestrator.deep_agent.approval.gate import ApprovalGate
from fanout.orchestrator.deep_agent.guards.interruptible_tools import interruptible
from fanout.orchestrator.deep_agent.messages import last_reply, text_of

_COPIED = (LlmAgent, LoopAgent, ParallelAgent, SequentialAgent)
"""Agents that find their sub-agents only in `sub_agents`, so that copies may take their place."""


class InheritedApproval(BasePlugin):
    """Applies a parent's approval policy to a ready agent and all below it.

    Args:
        policy: The parent's policy.
    """

    def __init__(self, policy: InterruptOn) -> None:
        # A ready agent's own sub-agents have the plugins of both, and ADK wants unique names.
        super().__init__(name=f"inherited_approval_{uuid4().hex}")
        self._gate = ApprovalGate({}, policy, known=())

    def guarded(self, node: BaseNode) -> BaseNode:
        """Return an agent whose calls the gate checks as they would run, and a limit can end."""
        if not isinstance(node, _COPIED):
            return node
        below = [self.guarded(agent) for agent in node.sub_agents]
        update: dict[str, Any] = {"sub_agents": below} if below else {}
        if isinstance(node, LlmAgent):
            callbacks = node.canonical_before_tool_callbacks
            update["before_tool_callback"] = [*callbacks, self._gate.before_tool]
            update["tools"] = [interruptible(tool) for tool in node.tools]
        return node.clone(update)

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Check the calls of agents that could not be guarded."""
        agent = tool_context.get_invocation_context().agent
        if isinstance(agent, LlmAgent):
            gates = (
                getattr(each, "__self__", None) for each in agent.canonical_before_tool_callbacks
            )
            if any(gate is self._gate for gate in gates):
                return None
        return await self._gate.before_tool(tool, tool_args, tool_context)


def answer_of(node: BaseNode, events: Sequence[Event]) -> str:
    """Return the answer that an agent's run ended with; empty if there is none.

    It is the last message; of a ParallelAgent the last one of each branch; of a workflow the output
    of its last node, if it has one.

    Args:
        node: The agent.
        events: What its run has made.
    """
    if isinstance(node, ParallelAgent):
        parts = {
            branch.name: answer_of(branch, _events_of(branch, events)) for branch in node.sub_agents
        }
        return "\n\n".join(f"{name}:\n{text}" for name, text in parts.items() if text)
    if not isinstance(node, BaseAgent):
        outputs = (event.output for event in reversed(events) if event.output is not None)
        if (output := next(outputs, None)) is not None:
            return output if isinstance(output, str) else json.dumps(output, default=str)
    return text_of(last_reply(events))


def _events_of(agent: BaseAgent, events: Sequence[Event]) -> list[Event]:
    names = {agent.name, *(below.name for below in _all_below(agent))}
    return [event for event in events if event.author in names]


def _all_below(agent: BaseAgent) -> list[BaseAgent]:
    return [each for below in agent.sub_agents for each in (below, *_all_below(below))]
