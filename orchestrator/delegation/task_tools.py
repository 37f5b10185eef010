"""The tools whose tasks are jobs: those of every agent that delegates, and six for started tasks.

`JobTasks` is their port: a program's client on one side, a job on a worker on the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol

from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from pydantic import AliasChoices, Field

from ..deep_agent import (
    DelegationStyle,
    MethodTool,
    ProgressTool,
    TaskResult,
    Tasks,
    TaskTools,
    about_tasks,
    polling,
    tabular,
)
from ..jobs.failures import InvalidJob
from ..jobs.state import JobRecord, JobState
from .answers import (
    job_summary,
    started_result,
    task_error,
)
from .calls import JobTask
from .tool_texts import (
    CANCEL_TASK,
    CHECK_TASK,
    LIST_TASKS,
    LONGEST_WAIT_SECONDS,
    RUN_SCRIPT,
    UPDATE_TASK,
    WAIT_TASKS,
    JobTexts,
)

TaskId = Annotated[str, Field(validation_alias=AliasChoices("task_id", "job_id"))]
"""The id of a task; a conversation of an earlier release has `job_id`."""

TaskIds = Annotated[list[str], Field(validation_alias=AliasChoices("task_ids", "job_ids"))]
"""Several of them."""


class JobTasks(Tasks, Protocol):
    """The tasks of one agent, each of which is a job; some go on while the agent works."""

    @property
    def quoted(self) -> tuple[type[Exception], ...]:
        """The failures whose text is the answer to a call; others end the agent's run."""

    async def submit(self, item: Mapping[str, Any], tool_context: ToolContext) -> str:
        """Submit a task that a tool has checked, and return its job's id."""

    async def find(self, job_id: str, tool_context: ToolContext) -> JobRecord:
        """Return the record of a task.

        Raises:
            UnknownJob: The job does not exist, or is no task of this agent's.
        """

    async def collect(self, job_id: str, agent: str) -> TaskResult:
        """Return the result of a task that has ended, its changes landed if it succeeded.

        Args:
            job_id: The task's job.
            agent: The name of its agent.
        """

    async def wait(
        self, job_ids: Sequence[str], seconds: float, tool_context: ToolContext
    ) -> TaskResult:
        """Wait until these tasks have ended or the time is over.

        Returns:
            The answer of `wait_tasks`; it may be deferred.
        """

    async def send(self, job_id: str, message: str) -> None:
        """Send a task's agent a message."""

    async def cancel(self, job_id: str) -> JobState:
        """Cancel a task, and return its state from before."""

    async def summaries(self, tool_context: ToolContext) -> Sequence[TaskResult]:
        """Return the states of all tasks, oldest first, as of `job_summary`."""


class ScriptTasks(Protocol):
    """Runs the scripts of one agent, each of which is a job."""

    async def run_script(
        self, script: str, inputs: Mapping[str, Any], tool_context: ToolContext
    ) -> TaskResult:
        """Run a script, and return its value as of `script_result`; it may be deferred."""


class JobTaskTools:
    """The tools of one agent.

    Args:
        tasks: The agent's tasks.
        texts: What its model reads about `task` and `tasks`.
        tool: `ProgressTool` if `JobTasks.run` shows progress, else `MethodTool`.
        scripts: The agent's scripts; None: it has none.
    """

    def __init__(
        self,
        tasks: JobTasks,
        texts: JobTexts,
        tool: type[ProgressTool | MethodTool],
        scripts: ScriptTasks | None = None,
    ) -> None:
        self._tasks = tasks
        self._scripts = scripts
        self._start = texts.start_task
        self._delegating = TaskTools(tasks, JobTask, texts, tool)

    def tools(self, style: DelegationStyle, agents: Mapping[str, str]) -> list[BaseTool]:
        """Return the tools; the arguments are those of `TaskTools.tools`."""
        return [
            *self._delegating.tools(style, agents),
            *([MethodTool(self.run_script, description=RUN_SCRIPT)] if self._scripts else []),
            MethodTool(self.start_task, description=self._start, arguments=JobTask),
            MethodTool(self.check_task, description=CHECK_TASK),
            MethodTool(self.wait_tasks, description=WAIT_TASKS),
            MethodTool(self.update_task, description=UPDATE_TASK),
            MethodTool(self.cancel_task, description=CANCEL_TASK),
            MethodTool(self.list_tasks, description=LIST_TASKS),
        ]

    async def start_task(self, tool_context: ToolContext, **item: Any) -> TaskResult:
        """Start a task. The model reads `JobTexts.start_task`."""
        try:
            return started_result(await self._tasks.submit(item, tool_context))
        except self._tasks.quoted as failure:
            return task_error(failure)

    async def run_script(
        self, script: str, tool_context: ToolContext, inputs: dict[str, Any] | None = None
    ) -> TaskResult:
        """Run a script. The model reads `RUN_SCRIPT`."""
        assert self._scripts is not None  # noqa: S101 - the tool is only there with it
        try:
            return await self._scripts.run_script(script, inputs or {}, tool_context)
        except self._tasks.quoted as failure:
            return task_error(failure)

    @about_tasks
    @polling
    async def check_task(self, task_id: TaskId, tool_context: ToolContext) -> TaskResult:
        """Return the state of a task. The model reads `CHECK_TASK`."""
        try:
            record = await self._tasks.find(task_id, tool_context)
            if record.state.is_terminal:
                return await self._tasks.collect(task_id, record.agent)
        except self._tasks.quoted as failure:
            return task_error(failure, task_id)
        return {"status": "success", **job_summary(record)}

    @about_tasks
    @polling
    @tabular
    async def wait_tasks(
        self,
        task_ids: TaskIds,
        tool_context: ToolContext,
        timeout_seconds: float = LONGEST_WAIT_SECONDS,
    ) -> TaskResult:
        """Wait for tasks. The model reads `WAIT_TASKS`."""
        seconds = min(max(timeout_seconds, 0), LONGEST_WAIT_SECONDS)
        return await self._tasks.wait([*dict.fromkeys(task_ids)], seconds, tool_context)

    async def update_task(
        self, task_id: TaskId, message: str, tool_context: ToolContext
    ) -> TaskResult:
        """Send a task's agent a message. The model reads `UPDATE_TASK`."""
        try:
            await self._tasks.find(task_id, tool_context)
            await self._tasks.send(task_id, message)
        except self._tasks.quoted as failure:
            return task_error(failure, task_id)
        return started_result(task_id)

    async def cancel_task(self, task_id: TaskId, tool_context: ToolContext) -> TaskResult:
        """Cancel a task. The model reads `CANCEL_TASK`."""
        try:
            await self._tasks.find(task_id, tool_context)
            before = await self._tasks.cancel(task_id)
        except self._tasks.quoted as failure:
            return task_error(failure, task_id)
        if before.is_terminal:
            return task_error(InvalidJob(f"The task had ended before: {before}."), task_id)
        return started_result(task_id)

    @about_tasks
    @polling
    @tabular
    async def list_tasks(self, tool_context: ToolContext) -> TaskResult:
        """List all tasks. The model reads `LIST_TASKS`."""
        try:
            return {"status": "success", "tasks": [*await self._tasks.summaries(tool_context)]}
        except self._tasks.quoted as failure:
            return task_error(failure)
