"""`TaskToolset`: the tools that delegate to jobs, for an ADK agent in a program of one's own.

No tool raises, because that would cancel the other calls of the same reply and end the agent's run:
a failure is returned as a result with `status: error`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.tool_context import ToolContext
from pydantic import ValidationError

from ..approvals import InterruptOn
from ..cancellation import uninterrupted
from ..client import JobClient
from ..configuration.agent_definitions import COORDINATOR
from ..deep_agent import (
    MAX_RESULT_TOKENS,
    DelegationStyle,
    Emit,
    ProgressTool,
    TaskResult,
    TaskSteps,
    agent_identifier,
    bounded_contents,
    combined_answer,
    conversation_of_call,
    with_progress,
)
from ..delegation.answers import (
    failed_task,
    job_summary,
    progress_event,
    progress_line,
    task_result,
)
from ..delegation.calls import JobTask, agent_list
from ..delegation.inherited_conversation import check_heir, conversation_lines
from ..delegation.submission_check import check_commands
from ..delegation.task_tools import JobTaskTools
from ..delegation.tool_texts import OF_PROGRAM
from ..jobs.failures import InvalidJob, JobFailure, UnknownJob
from ..jobs.spec import JobSpec, Limits
from ..jobs.state import JobRecord, JobState


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
            InvalidJob: The agent has scripts, which are for jobs.
        """
        super().__init__()
        definition = client.definitions[agent]
        if definition.scripts:
            raise InvalidJob(
                f"{agent} has scripts: true, and only an agent that is a job runs scripts: use "
                "JobAgent, remove the key, or call JobClient.run_script in your program."
            )
        self._agents = client.definitions.callable_by(definition)
        self._delegation = delegation
        self._tasks = ClientTasks(client, workspace, self._agents, interrupt_on or {})

    async def process_llm_request(
        self, *, tool_context: ToolContext, llm_request: LlmRequest
    ) -> None:
        """Bound the results of tasks in a request of an agent that does not do that itself."""
        del tool_context
        tools = await self.get_tools()
        bounded_contents(llm_request, {tool.name: tool for tool in tools}, MAX_RESULT_TOKENS)

    @property
    def instruction(self) -> str:
        """The list of agents that may be called, for the agent's instruction."""
        return agent_list(self._agents)

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        """Return the tools."""
        del readonly_context
        tools = JobTaskTools(self._tasks, OF_PROGRAM, ProgressTool)
        return tools.tools(self._delegation, self._agents)


class ClientTasks:
    """The tasks of a program's agent; see `JobTasks`.

    Args:
        client: Submits the jobs and reads their results.
        workspace: The folder that jobs start from and whose files their changes are merged into.
        agents: The agents that may be called, with their descriptions.
        interrupt_on: The caller's approval policy, which binds its jobs as well.
    """

    quoted = (JobFailure, ValidationError)

    def __init__(
        self,
        client: JobClient,
        workspace: Path,
        agents: Mapping[str, str],
        interrupt_on: InterruptOn,
    ) -> None:
        self._client = client
        self._workspace = workspace
        self._agents = agents
        self._interrupt_on = interrupt_on

    def run(
        self, items: Sequence[dict[str, Any]], tool_context: ToolContext, *, combined: bool
    ) -> TaskSteps:
        """Run tasks as jobs; see `Tasks.run`."""

        async def work(emit: Emit) -> TaskResult:
            call_id = str(tool_context.function_call_id)
            ids = [f"{call_id}.{number}" if combined else call_id for number in range(len(items))]
            answers = await asyncio.gather(
                *(
                    self._run(item, number, ids[number], tool_context, emit)
                    for number, item in enumerate(items)
                )
            )
            return combined_answer(answers) if combined else answers[0]

        return with_progress(work)

    async def _run(
        self,
        item: dict[str, Any],
        number: int,
        call_id: str,
        tool_context: ToolContext,
        emit: Emit,
    ) -> TaskResult:
        """Run a task as a job, and return its result or the reason of a failure.

        The same call, made again by a restarted parent, follows the same job.
        """
        job_id = ""
        try:
            spec = await self._spec(item, number, call_id, tool_context)
            job_id = spec.id
            await self._follow(spec, emit)
            return await self.collect(job_id, spec.agent)
        except Exception as failure:  # noqa: BLE001 - a tool that raises would end its siblings
            return failed_task(failure, job_id)

    async def _follow(self, spec: JobSpec, emit: Emit) -> None:
        """Submit a job and emit its progress until it ends; cancel it if this is cancelled."""
        try:
            await self._client.submit(spec, workspace=self._workspace)
            async with aclosing(self._client.events(spec.id)) as events:
                async for event in events:
                    if (line := progress_line(event, spec.agent)) is not None:
                        emit(progress_event(line, event))
        except asyncio.CancelledError:
            # It may have been stored before `submit` returned.
            await uninterrupted(self._cancel_quietly(spec.id))
            raise

    async def _cancel_quietly(self, job_id: str) -> None:
        """Cancel a job; a failure is ignored, because no caller is left that could handle it."""
        with suppress(JobFailure):
            await self._client.cancel(job_id)

    async def submit(self, item: Mapping[str, Any], tool_context: ToolContext) -> str:
        """See `JobTasks.submit`."""
        spec = await self._spec(item, 0, str(tool_context.function_call_id), tool_context)
        return await self._client.submit(spec, workspace=self._workspace)

    async def find(self, job_id: str, tool_context: ToolContext) -> JobRecord:
        """See `JobTasks.find`."""
        with suppress(UnknownJob):
            record = await self._client.get(job_id)
            if record.root_id == session_root_id(tool_context):
                return record
        raise UnknownJob(f"There is no task {job_id} in this conversation; list_tasks shows them.")

    async def collect(self, job_id: str, agent: str) -> TaskResult:
        """Wait for a job's end and return its result; its changes are merged if it succeeded.

        Merging again changes nothing. Changes of a job that did not succeed can be viewed and
        applied by hand.
        """
        result = await self._client.wait(job_id)
        if not result.success:
            return task_result(result, None, agent=agent)
        merged = await self._client.merge(result, self._workspace)
        return task_result(result, merged, agent=agent)

    async def wait(
        self, job_ids: Sequence[str], seconds: float, tool_context: ToolContext
    ) -> TaskResult:
        """See `JobTasks.wait`."""
        waiting = {
            job_id: asyncio.create_task(self._collect_own(job_id, tool_context))
            for job_id in job_ids
        }
        if not waiting:
            return {"status": "success", "results": [], "unfinished": []}
        try:
            done, _ = await asyncio.wait(waiting.values(), timeout=seconds)
        finally:
            for task in waiting.values():
                task.cancel()
        return {
            "status": "success",
            "results": [task.result() for task in waiting.values() if task in done],
            "unfinished": [job_id for job_id, task in waiting.items() if task not in done],
        }

    async def _collect_own(self, job_id: str, tool_context: ToolContext) -> TaskResult:
        try:
            record = await self.find(job_id, tool_context)
            return await self.collect(job_id, record.agent)
        except Exception as failure:  # noqa: BLE001 - the other tasks' results would be lost
            return failed_task(failure, job_id)

    async def send(self, job_id: str, message: str) -> None:
        """See `JobTasks.send`."""
        await self._client.send(job_id, message)

    async def cancel(self, job_id: str) -> JobState:
        """See `JobTasks.cancel`."""
        return (await self._client.cancel(job_id)).state

    async def summaries(self, tool_context: ToolContext) -> Sequence[TaskResult]:
        """See `JobTasks.summaries`."""
        try:
            records = await self._client.tree(session_root_id(tool_context))
        except UnknownJob:
            return []  # no task was ever started
        return [job_summary(record) for record in records]

    async def _spec(
        self, item: Mapping[str, Any], number: int, call_id: str, tool_context: ToolContext
    ) -> JobSpec:
        task = JobTask.of_item(item, number, self._agents)
        definition = self._client.definitions[task.subagent_type]
        check_commands(definition, self._interrupt_on, verify=task.verify)
        conversation = None
        if task.inherit:
            check_heir(definition)
            events = conversation_of_call(tool_context, agent_identifier(task.subagent_type))
            conversation = await self._client.keep_conversation(conversation_lines(events))
        return task.job_spec(
            call_id,
            root_id=session_root_id(tool_context),
            limits=Limits(timeout_seconds=task.timeout_seconds),
            interrupt_on=self._interrupt_on,
            conversation=conversation,
        )


def session_root_id(tool_context: ToolContext) -> str:
    """Return the id of the tree of a session's jobs: a hash of the user's and the session's ids.

    Two users may choose the same session id.
    """
    session = tool_context.session
    return hashlib.sha256(f"{session.user_id}/{session.id}".encode()).hexdigest()[:32]
