"""The tool that waits for a job, tells its progress, and asks a person what has to be approved."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.types import InputRequiredResult, ToolAnnotations
from pydantic import Field

from fanout.orchestrator.jobs.approvals import Approval
from fanout.orchestrator.jobs.state import JobRecord, JobState
from fanout.orchestrator.server.mcp.doors import Door, Opened, ToolContext
from fanout.orchestrator.server.mcp.tools import texts
from fanout.orchestrator.server.mcp.tools.elicitation import Elicitation
from fanout.orchestrator.server.mcp.tools.reports import JobReport, progress_line
from fanout.orchestrator.server.owned_jobs import OwnedJobs

WAITS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
MAX_WAIT_SECONDS = 45.0
"""Common clients give up after 60 s, whether there is progress or not."""
DEFAULT_WAIT_SECONDS = 30.0
"""Below the shortest limits of clients, and few calls of a long job."""
STEP_SECONDS = 2.0
"""Between two looks at the jobs below; the job's own end is seen at once."""

Seconds = Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS)]


class Waiting:
    """Waits for jobs, and reports on them.

    Args:
        door: Where the caller's jobs are found.
    """

    def __init__(self, door: Door) -> None:
        self._door = door

    def add_to(self, server: MCPServer[Any]) -> None:
        """Add the tools to a server."""
        server.add_tool(self.wait_job, None, "Wait for a job", texts.WAIT_JOB, WAITS)
        server.add_tool(self.get_job, None, "Show a job", texts.GET_JOB, WAITS)

    async def get_job(self, context: ToolContext, job_id: str) -> JobReport:
        """Return a job as it is now."""
        async with self._door.open(context) as opened:
            return await self._report(opened, job_id)

    async def wait_job(
        self, context: ToolContext, job_id: str, timeout_seconds: Seconds = DEFAULT_WAIT_SECONDS
    ) -> JobReport | InputRequiredResult:
        """Wait for a job's end, and return how it is then."""
        clock = asyncio.get_running_loop().time
        begin = clock()
        async with self._door.open(context) as opened:
            asking = Elicitation(context, opened.jobs)
            await asking.take_answers()
            while True:
                below = await jobs_below(opened.jobs, job_id)
                elapsed = clock() - begin
                await context.report_progress(elapsed, timeout_seconds, progress_line(below))
                waiting = await approvals_of(opened.jobs, below)
                if waiting and asking.is_possible:
                    question = await asking.ask(waiting)
                    if question is not None:
                        return question
                    continue  # the answers are given, or the person does not want to answer
                step = min(STEP_SECONDS, timeout_seconds - elapsed)
                if waiting or step <= 0 or await opened.jobs.wait(job_id, step) is not None:
                    return await self._report(opened, job_id)

    async def _report(self, opened: Opened, job_id: str) -> JobReport:
        jobs = opened.jobs
        result = await jobs.result(job_id)
        below = await jobs_below(jobs, job_id)
        return JobReport.of(
            await jobs.get(job_id),
            below,
            result,
            await jobs.usage(job_id),
            await approvals_of(jobs, below),
            is_local=self._door.is_local,
        )


async def jobs_below(jobs: OwnedJobs, job_id: str) -> list[JobRecord]:
    """Return a job and those below it, parents before children."""
    ids = {job_id}
    below = []
    for record in await jobs.tree(job_id):
        if record.id in ids or record.parent_id in ids:
            ids.add(record.id)
            below.append(record)
    return below


async def approvals_of(jobs: OwnedJobs, records: Sequence[JobRecord]) -> list[Approval]:
    """Return the calls of some jobs that wait for a decision, oldest first."""
    waiting = {one.id for one in records if one.state is JobState.WAITING and one.approvals}
    return [one for one in await jobs.approvals() if one.job_id in waiting] if waiting else []
