"""The tools that list jobs and agents."""

from __future__ import annotations

from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations
from pydantic import Field

from fanout.orchestrator.client.job_pages import JobFilter
from fanout.orchestrator.configuration.api_settings import Scope
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.server.mcp.doors import Door, ToolContext
from fanout.orchestrator.server.mcp.tools import texts
from fanout.orchestrator.server.mcp.tools.reports import AgentLine, AgentLines, JobLine, JobLines
from fanout.orchestrator.server.pages import cursor_of, position_of

READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
MAX_LISTED = 50
"""Jobs of one page: a model reads all of them."""

States = Annotated[list[JobState] | None, Field(description="Only jobs in one of these states.")]
Labels = Annotated[dict[str, str] | None, Field(description="Only jobs with all of these labels.")]
Words = Annotated[str, Field(description="A part of the id, agent, description or a label.")]
RootsOnly = Annotated[bool, Field(description="Leave out jobs that agents have submitted.")]
Limit = Annotated[int, Field(ge=1, le=MAX_LISTED)]


class Reading:
    """Lists jobs and agents.

    Args:
        door: Where the caller's jobs are found.
    """

    def __init__(self, door: Door) -> None:
        self._door = door

    def add_to(self, server: MCPServer[Any]) -> None:
        """Add the tools to a server."""
        server.add_tool(self.list_jobs, None, "List jobs", texts.LIST_JOBS, READS)
        server.add_tool(self.list_agents, None, "List agents", texts.LIST_AGENTS, READS)

    async def list_jobs(
        self,
        context: ToolContext,
        *,
        states: States = None,
        labels: Labels = None,
        text: Words = "",
        root_job_id: str | None = None,
        roots_only: RootsOnly = True,
        limit: Limit = 20,
        cursor: str | None = None,
    ) -> JobLines:
        """Return a page of jobs."""
        wanted = JobFilter(
            states=set(states) if states else None,
            labels=labels,
            root_id=root_job_id,
            roots_only=roots_only and root_job_id is None,
            text=text,
        )
        async with self._door.open(context) as opened:
            page = await opened.jobs.page(wanted, position_of(cursor), limit)
        lines = [JobLine.of(record) for record in page.records]
        return JobLines(jobs=lines, next_cursor=cursor_of(page.next))

    async def list_agents(self, context: ToolContext) -> AgentLines:
        """Return the agents that jobs may name."""
        async with self._door.open(context) as opened:
            opened.jobs.caller.require(Scope.READ)
            agents = sorted((await opened.jobs.definitions()).items())
        return AgentLines(
            agents=[AgentLine(name=name, description=one.description) for name, one in agents]
        )
