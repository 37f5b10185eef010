"""The coordinator's tools: `task` and those that work with started tasks.

Each call becomes a job. No tool raises, because that would cancel the other calls of the same reply
and end the coordinator's run: a failure is returned as a result with `status: error`. `deliver` is
the parent's side of such a job: submit it, follow its journal, merge its changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from google.adk.events import Event
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from pydantic import ValidationError

from fanout.orchestrator.approvals import InterruptOn
from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.deep_agent import (
    DelegationStyle,
    MethodTool,
    ProgressTool,
    SubagentType,
    agent_identifier,
    combined_answer,
    polling,
    tabular,
)
from fanout.orchestrator.delegation.answers import (
    TaskResult,
    failed_task,
    job_summary,
    progress_event,
    progress_line,
    started_result,
    task_error,
    task_result,
)
from fanout.orchestrator.delegation.calls import DEFAULT_SUBAGENT, TaskCall, check_agent
from fanout.orchestrator.delegation.submission_check import check_commands
from fanout.orchestrator.delegation.tool_texts import (
    CANCEL_TASK,
    CHECK_TASK,
    LIST_TASKS,
    LONGEST_WAIT_SECONDS,
    START_TASK,
    TASK_OF_COORDINATOR,
    TASKS,
    UPDATE_TASK,
    WAIT_TASKS,
    agent_tool_text,
    described,
)
from fanout.orchestrator.jobs.failures import JobFailure, UnknownJob
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import JobSpec, Limits
from fanout.orchestrator.jobs.state import JobRecord
from fanout.orchestrator.jobs.store.journal import JournalEvent
from fanout.orchestrator.workspace.merge_report import MergeReport

Steps = AsyncGenerator[Event | TaskResult]
"""Progress events, then one result."""


class TaskTools:
    """The tools of one coordinator on one workspace.

    Args:
        client: Submits the jobs and reads their results.
        workspace: The folder that jobs start from and whose files their changes are merged into.
        agents: The agents that this coordinator may call, with their descriptions.
        root_of: Returns the id of the job tree of a tool call's session.
        interrupt_on: The coordinator's approval policy, which binds its jobs as well.
        delegation: `task` for all agents, or one tool for each.
    """

    def __init__(
        self,
        client: JobClient,
        workspace: Path,
        agents: Mapping[str, str],
        root_of: Callable[[ToolContext], str],
        interrupt_on: InterruptOn | None = None,
        delegation: DelegationStyle = "task",
    ) -> None:
        self._client = client
        self._workspace = workspace
        self._agents = dict(sorted(agents.items()))
        self._delegation = delegation
        self._root_of = root_of
        self._interrupt_on = dict(interrupt_on or {})

    def tools(self) -> list[BaseTool]:
        """Return the tools for an ADK agent."""
        background = [
            described(MethodTool(self.start_task), START_TASK),
            described(MethodTool(self.check_task), CHECK_TASK),
            described(MethodTool(self.wait_tasks), WAIT_TASKS),
            described(MethodTool(self.update_task), UPDATE_TASK),
            described(MethodTool(self.cancel_task), CANCEL_TASK),
            described(MethodTool(self.list_tasks), LIST_TASKS),
        ]
        delegating: list[BaseTool] = [described(ProgressTool(self.task), TASK_OF_COORDINATOR)]
        if self._delegation == "agent_tools":
            delegating = [_AgentTool(self, name, text) for name, text in self._agents.items()]
        return [
            *delegating,
            described(ProgressTool(self.tasks), TASKS),
            *background,
        ]

    def task(
        self,
        description: str,
        tool_context: ToolContext,
        subagent_type: SubagentType = DEFAULT_SUBAGENT,
        context: str = "",
        timeout_seconds: float | None = None,
        verify: str = "",
    ) -> Steps:
        """Run a task as a job. The model reads `TASK_OF_COORDINATOR`."""
        make_call = partial(TaskCall, description, subagent_type, context, timeout_seconds, verify)
        return self._run(make_call, _call_id(tool_context), tool_context)

    @tabular
    async def tasks(self, tasks: list[dict[str, Any]], tool_context: ToolContext) -> Steps:
        """Run tasks as jobs, at the same time. The model reads `TASKS`."""
        steps: asyncio.Queue[tuple[int, Event | TaskResult]] = asyncio.Queue()
        runners = [
            asyncio.create_task(self._one_of_many(number, item, tool_context, steps))
            for number, item in enumerate(tasks)
        ]
        results: dict[int, TaskResult] = {}
        try:
            while len(results) < len(runners):
                number, value = await steps.get()
                if isinstance(value, Event):
                    yield value
                else:
                    results[number] = value
        finally:
            await cancel_and_wait(*runners)
        yield combined_answer([results[number] for number in range(len(tasks))])

    async def _one_of_many(
        self,
        number: int,
        item: dict[str, Any],
        tool_context: ToolContext,
        steps: asyncio.Queue[tuple[int, Event | TaskResult]],
    ) -> None:
        """Put a task's progress and then its one result in the queue."""
        call_id = f"{_call_id(tool_context)}.{number}"
        run = self._run(partial(TaskCall.of_item, item, number), call_id, tool_context)
        async with aclosing(run) as made:
            async for step in made:
                await steps.put((number, step))

    async def _run(
        self, make_call: Callable[[], TaskCall], call_id: str, tool_context: ToolContext
    ) -> Steps:
        """Run a task as a job: yield its progress, then its result or the reason of a failure."""
        job_id = ""
        try:
            spec = self._spec(tool_context, call_id, make_call())
            job_id = spec.id
            delivering = deliver(self._client, spec, self._workspace)
            async with aclosing(delivering) as steps:
                async for step in steps:
                    if isinstance(step, Delivery):
                        yield task_result(step.result, step.merge)
                    elif (line := progress_line(step, spec.agent)) is not None:
                        yield progress_event(line, step)
        except Exception as failure:  # noqa: BLE001 - a tool that raises would end its siblings
            yield failed_task(failure, job_id)

    async def _collect(self, job_id: str) -> TaskResult:
        """Wait for a started task and return its result, its changes merged."""
        delivery = await collect(self._client, job_id, self._workspace)
        return task_result(delivery.result, delivery.merge)

    async def start_task(
        self,
        description: str,
        tool_context: ToolContext,
        subagent_type: SubagentType = DEFAULT_SUBAGENT,
        context: str = "",
        timeout_seconds: float | None = None,
        verify: str = "",
    ) -> TaskResult:
        """Start a task as a job. The model reads `START_TASK`."""
        try:
            call_id = _call_id(tool_context)
            call = TaskCall(description, subagent_type, context, timeout_seconds, verify)
            spec = self._spec(tool_context, call_id, call)
            return started_result(await self._client.submit(spec, workspace=self._workspace))
        except (JobFailure, ValidationError) as failure:
            return task_error(failure)

    @polling
    async def check_task(self, job_id: str, tool_context: ToolContext) -> TaskResult:
        """Return the state of a task. The model reads `CHECK_TASK`."""
        try:
            record = await self._own(job_id, tool_context)
            if record.state.is_terminal:
                return await self._collect(job_id)
            return {"status": "success", **job_summary(record)}
        except JobFailure as failure:
            return task_error(failure, job_id)

    @polling
    @tabular
    async def wait_tasks(
        self,
        job_ids: list[str],
        tool_context: ToolContext,
        timeout_seconds: float = LONGEST_WAIT_SECONDS,
    ) -> TaskResult:
        """Wait for tasks. The model reads `WAIT_TASKS`."""
        waiting = {
            job_id: asyncio.create_task(self._collect_own(job_id, tool_context))
            for job_id in dict.fromkeys(job_ids)
        }
        if not waiting:
            return {"status": "success", "results": [], "unfinished": []}
        try:
            seconds = min(max(timeout_seconds, 0), LONGEST_WAIT_SECONDS)
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
            await self._own(job_id, tool_context)
            return await self._collect(job_id)
        except Exception as failure:  # noqa: BLE001 - the other tasks' results would be lost
            return failed_task(failure, job_id)

    async def update_task(self, job_id: str, message: str, tool_context: ToolContext) -> TaskResult:
        """Send a task's agent a message. The model reads `UPDATE_TASK`."""
        try:
            await self._own(job_id, tool_context)
            await self._client.send(job_id, message)
        except JobFailure as failure:
            return task_error(failure, job_id)
        return started_result(job_id)

    async def cancel_task(self, job_id: str, tool_context: ToolContext) -> TaskResult:
        """Cancel a task. The model reads `CANCEL_TASK`."""
        try:
            await self._own(job_id, tool_context)
            before = await self._client.cancel(job_id)
        except JobFailure as failure:
            return task_error(failure, job_id)
        if before.state.is_terminal:
            return {
                "status": "error",
                "job_id": job_id,
                "error": f"The task had ended before: {before.state}.",
            }
        return started_result(job_id)

    @polling
    @tabular
    async def list_tasks(self, tool_context: ToolContext) -> TaskResult:
        """List all tasks of this conversation. The model reads `LIST_TASKS`."""
        try:
            records = await self._client.tree(self._root_of(tool_context))
        except UnknownJob:
            records = []  # no task was ever started
        except JobFailure as failure:
            return task_error(failure)
        return {"status": "success", "tasks": [job_summary(record) for record in records]}

    async def _own(self, job_id: str, tool_context: ToolContext) -> JobRecord:
        """Return the record of a task of this conversation.

        Raises:
            UnknownJob: The job does not exist, or belongs to another conversation.
        """
        with suppress(UnknownJob):
            record = await self._client.get(job_id)
            if record.root_id == self._root_of(tool_context):
                return record
        raise UnknownJob(f"There is no task {job_id} in this conversation; list_tasks shows them.")

    def _spec(self, tool_context: ToolContext, call_id: str, task: TaskCall) -> JobSpec:
        check_agent(task.subagent_type, self._agents)
        definition = self._client.definitions[task.subagent_type]
        check_commands(definition, self._interrupt_on, verify=task.verify)
        return task.job_spec(
            call_id,
            root_id=self._root_of(tool_context),
            limits=Limits(timeout_seconds=task.timeout_seconds),
            interrupt_on=self._interrupt_on,
        )


class _AgentTool(ProgressTool):
    """A tool that delegates to one agent, as `task` does."""

    delegates_to_one = True

    def __init__(self, tools: TaskTools, agent: str, description: str) -> None:
        self._tools = tools
        self._agent = agent
        super().__init__(self.delegate)
        self.name = agent_identifier(agent)
        self.description = agent_tool_text(agent, description)

    def delegate(
        self,
        description: str,
        tool_context: ToolContext,
        context: str = "",
        timeout_seconds: float | None = None,
        verify: str = "",
    ) -> Steps:
        """Run a task as a job of this agent."""
        return self._tools.task(
            description, tool_context, self._agent, context, timeout_seconds, verify
        )


def _call_id(tool_context: ToolContext) -> str:
    return str(tool_context.function_call_id)


@dataclass(frozen=True)
class Delivery:
    """The result of a job, and the report of the merge of its changes."""

    result: JobResult
    merge: MergeReport | None
    """None when nothing was merged."""


async def deliver(
    client: JobClient, spec: JobSpec, workspace: Path
) -> AsyncGenerator[JournalEvent | Delivery]:
    """Run a job on a workspace: yield its journal's events as they are written, then its delivery.

    Cancelling or closing the generator cancels the job. A second call with the same job id follows
    the same job, so a restarted parent waits for the jobs that it had submitted.

    Args:
        client: Submits the job.
        spec: The job.
        workspace: The folder that the job starts from and whose files its changes are merged into.

    Raises:
        JobFailure: The job cannot be submitted or followed, or its changes cannot be merged.
    """
    try:
        job_id = await client.submit(spec, workspace=workspace)
        async with aclosing(client.events(job_id)) as events:
            async for event in events:
                yield event
    except (asyncio.CancelledError, GeneratorExit):
        # It may have been stored before `submit` returned.
        await asyncio.shield(_cancel_quietly(client, spec.id))
        raise
    yield await collect(client, job_id, workspace)


async def _cancel_quietly(client: JobClient, job_id: str) -> None:
    """Cancel a job; a failure is ignored, because no caller is left that could handle it."""
    with suppress(JobFailure):
        await client.cancel(job_id)


async def collect(client: JobClient, job_id: str, workspace: Path) -> Delivery:
    """Wait for the end of a submitted job and merge its changes.

    Merging again changes nothing. Changes of a job that did not succeed are not merged; they can be
    viewed and applied by hand.

    Args:
        client: Reads the result.
        job_id: The job.
        workspace: The folder whose files the changes are merged into.

    Raises:
        JobFailure: The result cannot be read, or the changes cannot be merged.
    """
    result = await client.wait(job_id)
    if not result.success:
        return Delivery(result, None)
    return Delivery(result, await client.merge(result, workspace))
