"""The tools that submit, list, await and cancel jobs, and give the decisions that they wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import InputRequiredResult, ToolAnnotations
from pydantic import Field

from ...approvals import Decision
from ...client.job_pages import JobFilter
from ...configuration.agent_definitions import COORDINATOR
from ...configuration.api_settings import Scope
from ...jobs.approvals import Approval
from ...jobs.failures import InvalidJob
from ...jobs.spec import JobSpec, OnFailure, StartFiles
from ...jobs.state import JobRecord, JobState
from ...scripts.program import MAX_SCRIPT_BYTES, title_of
from ...scripts.texts import A_SCRIPT
from ...server.http.models import JobRequest
from ...server.owned_jobs import OwnedJobs
from ...server.pages import make_cursor, read_cursor
from . import texts
from .doors import (
    DoorTools,
    Opened,
    StoredWorkspace,
    ToolContext,
)
from .elicitation import Elicitation
from .reports import (
    AnsweredApproval,
    JobReport,
    ListedAgent,
    ListedAgents,
    ListedJob,
    ListedJobs,
    Submitted,
    WaitingCall,
    WaitingCalls,
    links,
    progress_line,
)

READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
MAX_LISTED = 50
"""The most jobs of one page: a model reads all of them."""

States = Annotated[list[JobState] | None, Field(description="Only jobs in one of these states.")]
WantedLabels = Annotated[
    dict[str, str] | None, Field(description="Only jobs with all of these labels.")
]
Words = Annotated[str, Field(description="A part of the id, agent, description or a label.")]
RootsOnly = Annotated[bool, Field(description="Leave out jobs that agents have submitted.")]
Limit = Annotated[int, Field(ge=1, le=MAX_LISTED)]
SUBMITS = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=True
)
CANCELS = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False
)
MAX_LEFT_AT_HOME = 20
"""The most files that are named: a model only needs to see that there are some."""

Goal = Annotated[str, Field(description=texts.GOAL)]
Description = Annotated[str, Field(description=texts.DESCRIPTION)]
MoreText = Annotated[str | None, Field(description=texts.CONTEXT)]
Workspace = Annotated[str | None, Field(description=texts.WORKSPACE)]
Verify = Annotated[str | None, Field(description=texts.VERIFY)]
Model = Annotated[str | None, Field(description=texts.MODEL)]
ScriptText = Annotated[
    str, Field(description=texts.SCRIPT, min_length=1, max_length=MAX_SCRIPT_BYTES)
]
Inputs = Annotated[dict[str, Any] | None, Field(description=texts.INPUTS)]
Reuse = Annotated[bool, Field(description=texts.REUSE)]
Labels = Annotated[dict[str, str] | None, Field(description=texts.LABELS)]
Timeout = Annotated[float | None, Field(description=texts.TIMEOUT, gt=0)]
Continues = Annotated[str | None, Field(description=texts.CONTINUES)]
After = Annotated[list[str] | None, Field(description=texts.AFTER)]
WhenFailed = Annotated[OnFailure, Field(description=texts.ON_FAILURE)]
OutputSchema = Annotated[dict[str, Any] | None, Field(description=texts.OUTPUT_SCHEMA)]
IdempotencyKey = Annotated[str | None, Field(description=texts.IDEMPOTENCY_KEY)]
DECIDES = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True
)

Remark = Annotated[str, Field(description="A remark of the user for the agent.", max_length=20_000)]
Arguments = Annotated[
    dict[str, Any] | None, Field(description="For edit: the complete arguments to run with.")
]
Response = Annotated[Any, Field(description="For respond: what the agent gets as the result.")]
WAITS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
MAX_WAIT_SECONDS = 45.0
"""The longest wait: common clients give up after 60 s, even with progress."""
DEFAULT_WAIT_SECONDS = 30.0
"""The default wait: below the shortest limits of clients, and few calls for a long job."""
STEP_SECONDS = 2.0
"""The time between two checks of the jobs below; the job's own end is noticed at once."""

Seconds = Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS)]


class ListTools(DoorTools):
    """Lists jobs and agents."""

    def add_to(self, server: MCPServer[Any]) -> None:
        """Add the tools to a server."""
        server.add_tool(self.list_jobs, None, "List jobs", texts.LIST_JOBS, READS)
        server.add_tool(self.list_agents, None, "List agents", texts.LIST_AGENTS, READS)

    async def list_jobs(
        self,
        context: ToolContext,
        *,
        states: States = None,
        labels: WantedLabels = None,
        text: Words = "",
        root_job_id: str | None = None,
        roots_only: RootsOnly = True,
        limit: Limit = 20,
        cursor: str | None = None,
    ) -> ListedJobs:
        """Return a page of jobs."""
        wanted = JobFilter(
            states=set(states) if states else None,
            labels=labels,
            root_id=root_job_id,
            roots_only=roots_only and root_job_id is None,
            text=text,
        )
        async with self._door.open(context) as opened:
            page = await opened.jobs.page(wanted, read_cursor(cursor), limit)
        lines = [ListedJob.of(record) for record in page.records]
        return ListedJobs(jobs=lines, next_cursor=make_cursor(page.next))

    async def list_agents(self, context: ToolContext) -> ListedAgents:
        """Return the agents that jobs may name."""
        async with self._door.open(context) as opened:
            opened.jobs.caller.require(Scope.READ)
            agents = sorted((await opened.jobs.definitions()).items())
        return ListedAgents(
            agents=[ListedAgent(name=name, description=one.description) for name, one in agents]
        )


class _GivenScript(NamedTuple):
    """A script that is to run."""

    source: str
    inputs: dict[str, Any] | None
    reuse: bool


class SubmitTools(DoorTools):
    """Submits and cancels jobs."""

    def add_to(self, server: MCPServer[Any]) -> None:
        """Add the tools to a server."""
        server.add_tool(self.run, None, "Run", texts.RUN, SUBMITS)
        server.add_tool(self.run_script, None, "Run a script", texts.RUN_SCRIPT, SUBMITS)
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
            workspace = workspace or "."  # as `fanout run` does
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

    async def run_script(
        self,
        context: ToolContext,
        *,
        script: ScriptText,
        inputs: Inputs = None,
        reuse: Reuse = False,
        workspace: Workspace = None,
        model: Model = None,
        labels: Labels = None,
        timeout_seconds: Timeout = None,
        continues: Continues = None,
        idempotency_key: IdempotencyKey = None,
    ) -> Submitted:
        """Submit a job that runs a script, and return its id."""
        if self._door.is_local and not continues:
            workspace = workspace or "."  # as `fanout run` does
        fields = {
            "description": title_of(script) or A_SCRIPT,
            "agent": None if continues else COORDINATOR,
            "model": model,
            "labels": labels,
            "limits": timeout_seconds and {"timeout_seconds": timeout_seconds},
            "continues": continues,
            "idempotency_key": idempotency_key,
        }
        async with self._door.open(context) as opened:
            return await _submit(opened, fields, workspace, _GivenScript(script, inputs, reuse))

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
        after: After = None,
        on_failure: WhenFailed = "skip",
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
            "after": after,
            "on_failure": on_failure,
            "output_schema": output_schema,
            "idempotency_key": idempotency_key,
        }
        async with self._door.open(context) as opened:
            return await _submit(opened, fields, workspace)

    async def cancel_job(self, context: ToolContext, job_id: str) -> ListedJob:
        """Cancel a job, and return it."""
        async with self._door.open(context) as opened:
            await opened.jobs.cancel(job_id)
            return ListedJob.of(await opened.jobs.get(job_id))


async def _submit(
    opened: Opened,
    fields: dict[str, Any],
    workspace: str | None,
    script: _GivenScript | None = None,
) -> Submitted:
    request = JobRequest.model_validate(_given(fields))
    spec, stored = request.spec(), StoredWorkspace(StartFiles())
    if workspace:
        if spec.continues:
            raise InvalidJob("A job that continues another has its files: leave workspace out.")
        stored = await _start_files(opened, spec, workspace)
        spec = request.spec(**stored.start.update())
    if script is not None:
        spec = spec.model_copy(update={"reuse": script.reuse})
        spec = await opened.jobs.script_job(script.source, script.inputs, spec)
    job_id = (await opened.jobs.submit_many([spec]))[0]
    return Submitted(
        job_id=job_id,
        left_at_home=list(stored.left_at_home[:MAX_LEFT_AT_HOME]),
        limits=list(stored.limits[:MAX_LEFT_AT_HOME]),
        links=links(job_id),
    )


async def _start_files(opened: Opened, spec: JobSpec, workspace: str) -> StoredWorkspace:
    """Return the files of a job; a repetition has those of the first time, even if they changed."""
    known = await opened.jobs.known_as(spec) if spec.idempotency_key else None
    if known is not None:
        return StoredWorkspace(known.start)
    return await opened.workspaces.start_files(workspace, spec.agent)


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with a value: a continuation takes the others from the earlier job."""
    return {name: value for name, value in fields.items() if value is not None}


class ApprovalTools(DoorTools):
    """Lists waiting calls, and passes on decisions about them."""

    def add_to(self, server: MCPServer[Any]) -> None:
        """Add the tools to a server."""
        server.add_tool(self.list_approvals, None, "List approvals", texts.LIST_APPROVALS, READS)
        server.add_tool(
            self.respond_approval, None, "Pass on a decision", texts.RESPOND_APPROVAL, DECIDES
        )

    async def list_approvals(self, context: ToolContext) -> WaitingCalls:
        """Return the calls that wait, oldest first."""
        async with self._door.open(context) as opened:
            found = await opened.jobs.approvals()
        return WaitingCalls(
            approvals=[WaitingCall.of(one) for one in found[:MAX_LISTED]],
            omitted=len(found[MAX_LISTED:]),
        )

    async def respond_approval(
        self,
        context: ToolContext,
        *,
        approval_id: str,
        decision: Decision,
        message: Remark = "",
        arguments: Arguments = None,
        response: Response = None,
    ) -> AnsweredApproval | InputRequiredResult:
        """Answer an approval, and return the job that continues.

        If the client can ask, its user confirms a decision that lets the call run or answers it,
        because a model may claim a decision that nobody made.
        """
        given = {"message": message, "arguments": arguments, "response": response}
        async with self._door.open(context) as opened:
            asking = Elicitation(context, opened.jobs)
            waiting = {one.id: one for one in await opened.jobs.approvals()}
            if decision != "reject" and asking.is_possible and approval_id in waiting:
                proposed = {name: value for name, value in given.items() if value}
                confirmed = await asking.confirm(
                    waiting[approval_id], {"decision": decision, **proposed}
                )
                if isinstance(confirmed, InputRequiredResult):
                    return confirmed
                if not confirmed:
                    raise ToolError("Your user did not confirm this, so nothing was decided.")
            job_id = await opened.jobs.answer(
                approval_id, decision, arguments=arguments, response=response, message=message
            )
        return AnsweredApproval(approval_id=approval_id, job_id=job_id)


class WaitTools(DoorTools):
    """Waits for jobs, and reports on them."""

    def add_to(self, server: MCPServer[Any]) -> None:
        """Add the tools to a server."""
        server.add_tool(self.wait_job, None, "Wait for a job", texts.WAIT_JOB, WAITS)
        server.add_tool(self.get_job, None, "Show a job", texts.GET_JOB, WAITS)

    async def get_job(self, context: ToolContext, job_id: str) -> JobReport:
        """Return the current state of a job."""
        async with self._door.open(context) as opened:
            return await self._report(opened, job_id)

    async def wait_job(
        self, context: ToolContext, job_id: str, timeout_seconds: Seconds = DEFAULT_WAIT_SECONDS
    ) -> JobReport | InputRequiredResult:
        """Wait for a job's end, and return its state then."""
        clock = asyncio.get_running_loop().time
        begin = clock()
        async with self._door.open(context) as opened:
            asking = Elicitation(context, opened.jobs)
            await asking.take_answers()
            while True:
                below = await jobs_below(opened.jobs, job_id)
                elapsed = clock() - begin
                models = await opened.jobs.awaited_models(below)
                line = progress_line(below, models)
                await context.report_progress(elapsed, timeout_seconds, line)
                waiting = await list_approvals(opened.jobs, below)
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
            await jobs.awaited_models(below),
            result,
            await jobs.budget(job_id),
            await list_approvals(jobs, below),
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


async def list_approvals(jobs: OwnedJobs, records: Sequence[JobRecord]) -> list[Approval]:
    """Return the calls of some jobs that wait for a decision, oldest first."""
    waiting = {one.id for one in records if one.state is JobState.WAITING and one.approvals}
    return [one for one in await jobs.approvals() if one.job_id in waiting] if waiting else []
