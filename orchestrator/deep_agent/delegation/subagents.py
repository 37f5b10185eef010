"""Sub-agents in this process: delegation by `task` and `tasks`, or by one tool for each sub-agent.

A child is a separate run: it sees the description and the context that it is given, but not its
parent's messages, plan or state, and only its last message is returned. Its changes to files are
staged, and merged into the parent's files when it has succeeded. So are those of its commands,
which run in a copy; where none can be made, one child with a shell at a time works on the files
directly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from google.adk.agents import LlmAgent
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.workflow import BaseNode

from fanout.orchestrator.deep_agent.backends.state import DictState, StateBackend
from fanout.orchestrator.deep_agent.delegation.limits import MAX_DEPTH
from fanout.orchestrator.deep_agent.delegation.team import Team
from fanout.orchestrator.deep_agent.delegation.tools import (
    AgentTool,
    ChildToolsets,
    TasksTool,
    TaskTool,
)
from fanout.orchestrator.deep_agent.middleware import Middleware
from fanout.orchestrator.deep_agent.prompts import delegation_prompt

DelegationStyle = Literal["task", "agent_tools"]
"""One tool for all sub-agents, or one tool for each; `tasks` is there in both styles."""


class Subagents(Middleware):
    """The sub-agents of one agent.

    Args:
        team: The sub-agents.
        delegation: One `task` tool, or one tool for each sub-agent.

    Raises:
        ValueError: The tree is too deep, or a child cannot be made as specified.
    """

    def __init__(self, team: Team, delegation: DelegationStyle) -> None:
        self._team = team
        self._delegation = delegation
        no_files = StateBackend(DictState())
        probes = [(member, team.agent(member, no_files)) for member in team.members.values()]
        self.depth = 1 + max(_depth_of(probe) for _, probe in probes)
        """Levels of agents below the parent."""
        if self.depth > MAX_DEPTH:
            raise ValueError(f"Sub-agents are {self.depth} levels deep; {MAX_DEPTH} are allowed.")
        self._toolsets = [
            tool
            for member, probe in probes
            if isinstance(member.made, BaseNode) or member.made.keys() & {"tools", "subagents"}
            for tool in _tools_below(probe)
            if isinstance(tool, BaseToolset)
        ]

    def tools(self) -> list[BaseTool]:
        """Return `task`, or one tool for each sub-agent; and `tasks`."""
        tasks = TasksTool(self._team, self.depth)
        if self._delegation == "task":
            return [TaskTool(self._team), tasks]
        return [*(AgentTool(self._team, member) for member in self._team.members.values()), tasks]

    def all_tools(self) -> list[BaseTool | BaseToolset]:
        """Return the tools, and a toolset that closes the sub-agents' own toolsets."""
        return [*self.tools(), *([ChildToolsets(self._toolsets)] if self._toolsets else [])]

    async def instruction(self, context: ReadonlyContext, tools: frozenset[str]) -> str:
        """Explain when to delegate, and to which sub-agents."""
        del context, tools
        listed = [(member.name, member.description) for member in self._team.members.values()]
        return delegation_prompt(listed if self._delegation == "task" else [])


def _tree(node: BaseNode) -> Iterator[BaseNode]:
    """Yield an agent, and the agents below it that ADK itself runs."""
    yield node
    for below in node.sub_agents if isinstance(node, BaseAgent) else ():
        yield from _tree(below)


def _tools_below(node: BaseNode) -> list[Any]:
    return [tool for each in _tree(node) if isinstance(each, LlmAgent) for tool in each.tools]


def _depth_of(node: BaseNode) -> int:
    """Return the number of levels of sub-agents below an agent."""
    return max(
        (tool.depth for tool in _tools_below(node) if isinstance(tool, TasksTool)), default=0
    )
