"""The tools that submit jobs and cancel them."""

from __future__ import annotations

from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations
from pydantic import Field

from fanout.orchestrator.configuration.agent_definitions import COORDINATOR
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.jobs.spec import JobSpec, StartFiles
from fanout.orchestrator.server.http.models import JobRequest
from fanout.orchestrator.server.mcp.doors import Door, Opened, ToolContext
from fanout.orchestrator.server.mcp.tools import texts
from fanout.orchestrator.server.mcp.tools.reports import JobLine, Submitted, links
from fanout.orchestrator.server.mcp.workspaces import StoredWorkspace

SUBMITS = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=True
)
CANCELS = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False
)
MAX_LEFT_AT_HOME = 20
"""Files that are named: a model only needs to see that there are some."""

Goal = Annotated[str, Field(description=texts.GOAL)]
Description = Annotated[str, Field(description=texts.DESCRIPTION)]
MoreText = Annotated[str | None, Field(description=texts.CONTEXT)]
Workspace = Annotated[str | None, Field(description=texts.WORKSPACE)]
Verify = Annotated[str | None, Field(description=texts.VERIFY)]
Model = Annotated[str | None, Field(description=texts.MODEL)]
Labels = Annotated[dict[str, str] | None, Field(description=texts.LABELS)]
Timeout = Annotated[float | None, Field(description=texts.TIMEOUT, gt=0)]
Continues = Annotated[str | None, Field(description=texts.CONTINUES)]
OutputSchema = Annotated[dict[str, Any] | None, Field(description=texts.OUTPUT_SCHEMA)]
IdempotencyKey = Annotated[str | None, Field(description=texts.IDEMPOTENCY_KEY)]


class Submitting:
    """Submits and cancels jobs.

    Args:
        door: Where the caller's jobs are found.
    """

    def __init__(self, door: Door) -> None:
        self._door = door

    def add_to(self, server: MCPServer[Any]) -> None:
        """Add the tools to a server."""
        server.add_tool(self.run, None, "Run", texts.RUN, SUBMITS)
        server.add_tool(self.submit_job, None, "Submit a job", texts.SUBMIT_JOB, SUBMITS)
        server.add_tool(self.cancel_job, None, "Cancel a job", texts.CANCEL_JOB, CANCELS)

    async def run(
        self,
        context: ToolContext,
        *,
        goal: Goal,
        workspace: Workspace = None,
        verify: Verify = None,
        model: Model = None,
        labels: Labels = None,
        timeout_seconds: Timeout = None,
        continues: Continues = None,
        idempotency_key: IdempotencyKey = None,
    ) -> Submitted:
        """Submit a job of the coordinator, and return its id."""
        if self._door.is_local and not continues:
            workspace = workspace or "."  # as `fanout run`
        return await self.submit_job(
            context,
            description=goal,
            agent=None if continues else COORDINATOR,
            workspace=workspace,
            verify=verify,
            model=model,
            labels=labels,
            timeout_seconds=timeout_seconds,
            continues=continues,
            idempotency_key=idempotency_key,
        )

    async def submit_job(
        self,
        context: ToolContext,
        *,
        description: Description,
        agent: str | None = None,
        more_context: MoreText = None,
        workspace: Workspace = None,
        verify: Verify = None,
        model: Model = None,
        labels: Labels = None,
        timeout_seconds: Timeout = None,
        continues: Continues = None,
        output_schema: OutputSchema = None,
        idempotency_key: IdempotencyKey = None,
    ) -> Submitted:
        """Submit a job of one agent, and return its id."""
        fields = {
            "description": description,
            "agent": agent,
            "context": more_context,
            "verify": verify,
            "model": model,
            "labels": labels,
            "limits": timeout_seconds and {"timeout_seconds": timeout_seconds},
            "continues": continues,
            "output_schema": output_schema,
            "idempotency_key": idempotency_key,
        }
        async with self._door.open(context) as opened:
            return await _submit(opened, fields, workspace)

    async def cancel_job(self, context: ToolContext, job_id: str) -> JobLine:
        """Cancel a job, and return it."""
        async with self._door.open(context) as opened:
            await opened.jobs.cancel(job_id)
            return JobLine.of(await opened.jobs.get(job_id))


async def _submit(opened: Opened, fields: dict[str, Any], workspace: str | None) -> Submitted:
    request = JobRequest.model_validate(_given(fields))
    spec, stored = request.spec(), StoredWorkspace(StartFiles())
    if workspace:
        if spec.continues:
            raise InvalidJob("A job that continues another has its files: leave workspace out.")
        stored = await _start_files(opened, spec, workspace)
        spec = request.spec(**stored.start.update())
    job_id = (await opened.jobs.submit_many([spec]))[0]
    return Submitted(
        job_id=job_id,
        left_at_home=list(stored.left_at_home[:MAX_LEFT_AT_HOME]),
        limits=list(stored.limits[:MAX_LEFT_AT_HOME]),
        links=links(job_id),
    )


async def _start_files(opened: Opened, spec: JobSpec, workspace: str) -> StoredWorkspace:
    """Return the files of a job; a repetition has those of the first time, changed meanwhile."""
    known = await opened.jobs.known_as(spec) if spec.idempotency_key else None
    if known is not None:
        return StoredWorkspace(known.start)
    return await opened.workspaces.start_files(workspace, spec.agent)


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with a value: a continuation takes the others from the earlier job."""
    return {name: value for name, value in fields.items() if value is not None}
