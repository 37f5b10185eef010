"""The coordinator's tools: `task` and its kin. Each call becomes a job; none of them ever raises.

A tool that raises would cancel its siblings and end the coordinator's run, so every failure comes
back as an answer with `status: error` and a sentence for the model.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from google.adk.events import Event
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from pydantic import JsonValue, ValidationError

from orchestrator.approvals import InterruptOn
from orchestrator.cancellation import cancel_and_wait
from orchestrator.client import JobClient
from orchestrator.coordinator.delivery import Delivery, deliver, dispatch
from orchestrator.deep_agent import (
    DelegationStyle,
    MethodTool,
    ProgressTool,
    agent_identifier,
    polling,
    tabular,
)
from orchestrator.delegation.answers import Answer, delivered, partial, progress, refused, shown
from orchestrator.delegation.calls import TaskCall, check_agent, job_id_of_call
from orchestrator.jobs.failures import JobFailure, UnknownJob
from orchestrator.jobs.spec import JobSpec, Limits
from orchestrator.jobs.state import JobRecord

LONGEST_WAIT_SECONDS = 600.0
"""How long one `wait_tasks` call may block the coordinator: it can ask again."""


_AGENT_TOOL = """\
Delegate one self-contained task to the sub-agent {agent} and wait for its result. {description}

The sub-agent works in its own sandbox on a copy of the workspace, which it sees at /workspace. When it
succeeds, its changes are merged into the workspace. Several calls in one reply run at the same time.

Args:
    description: What to do, complete in itself: the sub-agent sees nothing of this conversation.
    context: What it should know besides: findings, constraints, file paths.
    timeout_seconds: How long it may take; leave it out for the agent's own limit.
"""


class TaskTools:
    """The tools of one coordinator on one workspace.

    Args:
        client: the way to the jobs.
        workspace: the folder that jobs start from and merge into.
        agents: the agents that this coordinator may call, with their descriptions.
        root_of: names the tree of a tool call's session.
        interrupt_on: the coordinator's approval policy, which binds its jobs as well.
        delegation: `task` for all agents, or one tool for each.
        on_delivery: told of each job that has ended, with what became of its changes.
    """

    def __init__(
        self,
        client: JobClient,
        workspace: Path,
        agents: Mapping[str, str],
        root_of: Callable[[ToolContext], str],
        interrupt_on: InterruptOn | None = None,
        delegation: DelegationStyle = "task",
        on_delivery: Callable[[Delivery], None] = lambda _: None,
    ) -> None:
        self._on_delivery = on_delivery
        self._client = client
        self._workspace = workspace
        self._agents = dict(sorted(agents.items()))
        self._delegation = delegation
        self._root_of = root_of
        self._interrupt_on = dict(interrupt_on or {})

    def tools(self) -> list[BaseTool]:
        """All of them, for an ADK agent."""
        methods = (
            *(self.start_task, self.check_task, self.wait_tasks),
            *(self.update_task, self.cancel_task, self.list_tasks),
        )
        delegating: list[BaseTool] = [ProgressTool(self.task)]
        if self._delegation == "agent_tools":
            delegating = [_AgentTool(self, name, text) for name, text in self._agents.items()]
        return [
            *delegating,
            ProgressTool(self.tasks),
            *(MethodTool(method) for method in methods),
        ]

    async def task(
        self,
        description: str,
        tool_context: ToolContext,
        subagent_type: str = "general-purpose",
        context: str = "",
        timeout_seconds: float | None = None,
    ) -> AsyncGenerator[Event | Answer]:
        """Delegate one self-contained task to a sub-agent and wait for its result.

        The sub-agent works in its own sandbox on a copy of the workspace, which it sees at
        /workspace. When it succeeds, its changes are merged into the workspace. Call `task` several
        times in one reply to run sub-agents at the same time.

        Args:
            description: What to do, complete in itself: the sub-agent sees nothing of this
                conversation.
            subagent_type: Which agent does it.
            context: What it should know besides: findings, constraints, file paths.
            timeout_seconds: How long it may take; leave it out for the agent's own limit.

        Returns:
            status, job_id, summary, files_modified, merge (applied, conflicts), execution_seconds,
            usage, and output or error.
        """
        job_id = ""
        try:
            call_id = _call_id(tool_context)
            wanted = TaskCall(description, subagent_type, context, timeout_seconds)
            spec = self._spec(tool_context, call_id, wanted)
            job_id = spec.id
            async with aclosing(self._steps(spec)) as steps:
                async for step in steps:
                    yield step
        except Exception as failure:  # noqa: BLE001 - one that raises would end its siblings
            yield refused(failure, job_id)

    @tabular
    async def tasks(
        self, tasks: list[dict[str, Any]], tool_context: ToolContext
    ) -> AsyncGenerator[Event | Answer]:
        """Delegate many tasks at once and wait for all of them.

        One that fails does not stop the others.

        Args:
            tasks: Objects with `description` and, if wanted, `subagent_type`, `context`,
                `timeout_seconds`, as for `task`.

        Returns:
            status, and `results`: one answer as of `task` for each, in order.
        """
        steps: asyncio.Queue[tuple[int, Event | Answer]] = asyncio.Queue()
        runners = [
            asyncio.create_task(self._one_of_many(number, item, tool_context, steps))
            for number, item in enumerate(tasks)
        ]
        results: dict[int, JsonValue] = {}
        try:
            while len(results) < len(runners):
                number, value = await steps.get()
                if isinstance(value, Event):
                    yield value
                else:
                    results[number] = value
        finally:
            await cancel_and_wait(*runners)
        yield {"status": "success", "results": [results[number] for number in range(len(tasks))]}

    async def _one_of_many(
        self,
        number: int,
        item: dict[str, Any],
        tool_context: ToolContext,
        steps: asyncio.Queue[tuple[int, Event | Answer]],
    ) -> None:
        """Put a job's progress and then its one answer in the queue."""
        job_id = ""
        try:
            call_id = f"{_call_id(tool_context)}.{number}"
            spec = self._spec(tool_context, call_id, TaskCall.of_item(item, number))
            job_id = spec.id
            async with aclosing(self._steps(spec)) as made:
                async for step in made:
                    await steps.put((number, step))
        except Exception as failure:  # noqa: BLE001 - as in task
            await steps.put((number, refused(failure, job_id)))

    async def _steps(self, spec: JobSpec) -> AsyncGenerator[Event | Answer]:
        """A job's progress as it comes, then its answer."""
        async with aclosing(dispatch(self._client, spec, self._workspace)) as steps:
            async for step in steps:
                if isinstance(step, Delivery):
                    yield self._delivered(step)
                elif (line := progress(step, spec.agent)) is not None:
                    yield partial(line, step)

    def _delivered(self, delivery: Delivery) -> Answer:
        self._on_delivery(delivery)
        return delivered(delivery.result, delivery.merge)

    async def start_task(
        self,
        description: str,
        tool_context: ToolContext,
        subagent_type: str = "general-purpose",
        context: str = "",
        timeout_seconds: float | None = None,
    ) -> Answer:
        """Start a task as `task` does, without waiting for it.

        Args:
            description: What to do, complete in itself.
            subagent_type: Which agent does it.
            context: What it should know besides.
            timeout_seconds: How long it may take.

        Returns:
            status and job_id: give it to check_task, wait_tasks or cancel_task.
        """
        try:
            call_id = _call_id(tool_context)
            wanted = TaskCall(description, subagent_type, context, timeout_seconds)
            spec = self._spec(tool_context, call_id, wanted)
            return {
                "status": "success",
                "job_id": await self._client.submit(spec, workspace=self._workspace),
            }
        except (JobFailure, ValidationError) as failure:
            return refused(failure)

    @polling
    async def check_task(self, job_id: str, tool_context: ToolContext) -> Answer:
        """How a started task stands; when it has ended, its result, merged as `task` does.

        Args:
            job_id: The id that start_task gave.
        """
        try:
            record = await self._own(job_id, tool_context)
            if record.state.is_terminal:
                return self._delivered(await deliver(self._client, job_id, self._workspace))
            return {"status": "success", **shown(record)}
        except JobFailure as failure:
            return refused(failure, job_id)

    @polling
    @tabular
    async def wait_tasks(
        self,
        job_ids: list[str],
        tool_context: ToolContext,
        timeout_seconds: float = LONGEST_WAIT_SECONDS,
    ) -> Answer:
        """Wait until all of these tasks have ended or the time is over.

        Args:
            job_ids: Ids that start_task gave.
            timeout_seconds: How long to wait, 600 at the most; what has not ended goes on.

        Returns:
            status; `results`, as of `task`, of those that ended; `unfinished`: the ids of the
            others.
        """
        waiting = {
            job_id: asyncio.create_task(self._settle(job_id, tool_context))
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

    async def _settle(self, job_id: str, tool_context: ToolContext) -> Answer:
        try:
            await self._own(job_id, tool_context)
            return self._delivered(await deliver(self._client, job_id, self._workspace))
        except Exception as failure:  # noqa: BLE001 - the other results would be lost with it
            return refused(failure, job_id)

    async def update_task(self, job_id: str, message: str, tool_context: ToolContext) -> Answer:
        """Tell a started task's sub-agent something while it works.

        It reads it before its next step.

        Args:
            job_id: The id that start_task gave.
            message: What changes in the task, or what it should know besides.
        """
        try:
            await self._own(job_id, tool_context)
            await self._client.send(job_id, message)
        except JobFailure as failure:
            return refused(failure, job_id)
        return {"status": "success", "job_id": job_id}

    async def cancel_task(self, job_id: str, tool_context: ToolContext) -> Answer:
        """Stop a started task; what it did stays out of the workspace.

        Args:
            job_id: The id that start_task gave.
        """
        try:
            await self._own(job_id, tool_context)
            before = await self._client.cancel(job_id)
        except JobFailure as failure:
            return refused(failure, job_id)
        if before.state.is_terminal:
            return {
                "status": "error",
                "job_id": job_id,
                "error": f"The task had ended before: {before.state}.",
            }
        return {"status": "success", "job_id": job_id}

    @polling
    @tabular
    async def list_tasks(self, tool_context: ToolContext) -> Answer:
        """All tasks of this conversation, oldest first, and how they stand."""
        try:
            records = await self._client.tree(self._root_of(tool_context))
        except UnknownJob:
            records = []  # no task was ever started
        except JobFailure as failure:
            return refused(failure)
        return {"status": "success", "tasks": [shown(record) for record in records]}

    async def _own(self, job_id: str, tool_context: ToolContext) -> JobRecord:
        """The record of a job of this conversation; others' jobs do not exist here."""
        with suppress(UnknownJob):
            record = await self._client.get(job_id)
            if record.root_id == self._root_of(tool_context):
                return record
        raise UnknownJob(f"There is no task {job_id} in this conversation; list_tasks shows them.")

    def _spec(self, tool_context: ToolContext, call_id: str, task: TaskCall) -> JobSpec:
        check_agent(task.subagent_type, self._agents)
        root_id = self._root_of(tool_context)
        return JobSpec(
            id=job_id_of_call(root_id, call_id),
            root_id=root_id,
            agent=task.subagent_type,
            description=task.description,
            context=task.context or None,
            limits=Limits(timeout_seconds=task.timeout_seconds),
            interrupt_on=self._interrupt_on,
        )


class _AgentTool(ProgressTool):
    """One callable agent as a tool of its own; what it starts is a job as of `task`."""

    def __init__(self, tools: TaskTools, agent: str, description: str) -> None:
        self._tools = tools
        self._agent = agent
        super().__init__(self.delegate)
        self.name = agent_identifier(agent)
        self.description = _AGENT_TOOL.format(agent=agent, description=description)

    async def delegate(
        self,
        description: str,
        tool_context: ToolContext,
        context: str = "",
        timeout_seconds: float | None = None,
    ) -> AsyncGenerator[Event | Answer]:
        """Start a job of this agent and wait for it."""
        async with aclosing(
            self._tools.task(description, tool_context, self._agent, context, timeout_seconds)
        ) as steps:
            async for step in steps:
                yield step


def _call_id(tool_context: ToolContext) -> str:
    return str(tool_context.function_call_id)
