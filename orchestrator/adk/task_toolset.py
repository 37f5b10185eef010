"""`TaskToolset`: the tools that delegate to jobs, for an ADK agent in a program of one's own."""

from __future__ import annotations

import hashlib
from pathlib import Path

from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.tool_context import ToolContext

from fanout.orchestrator.adk.task_tools import TaskTools
from fanout.orchestrator.approvals import InterruptOn
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.agent_definitions import COORDINATOR
from fanout.orchestrator.deep_agent import DelegationStyle
from fanout.orchestrator.delegation.calls import agent_list


class TaskToolset(BaseToolset):
    """`task` and the tools for started tasks, each call of which is a job.

    Jobs start from a folder's files, and their changes are merged into it as they end. The agent
    itself runs in the caller's process; one that has to outlive it is a `JobAgent`.
    """

    delegates = True
    """An agent with this toolset gets no `task` of the harness by default."""

    def __init__(
        self,
        client: JobClient,
        workspace: Path,
        *,
        agent: str = COORDINATOR,
        interrupt_on: InterruptOn | None = None,
        delegation: DelegationStyle = "task",
    ) -> None:
        """Make the toolset.

        Args:
            client: Submits the jobs.
            workspace: The folder.
            agent: The name of a definition, whose `subagents` may be called.
            interrupt_on: The caller's approval policy, which binds its jobs as well.
            delegation: `task` for all agents, or one tool for each.

        Raises:
            UnknownAgent: The definition does not exist, or names an agent that does not.
        """
        super().__init__()
        self._agents = client.definitions.callable_by(client.definitions[agent])
        self._tools = TaskTools(
            client,
            workspace,
            self._agents,
            root_id_of,
            interrupt_on=interrupt_on,
            delegation=delegation,
        )

    @property
    def instruction(self) -> str:
        """The list of agents that may be called, for the agent's instruction."""
        return agent_list(self._agents)

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        """Return the tools."""
        del readonly_context
        return self._tools.tools()


def root_id_of(tool_context: ToolContext) -> str:
    """Return the id of the tree of a session's jobs: a hash of the user's and the session's ids.

    Two users may choose the same session id.
    """
    session = tool_context.session
    return hashlib.sha256(f"{session.user_id}/{session.id}".encode()).hexdigest()[:32]
