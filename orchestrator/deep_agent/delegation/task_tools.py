"""The tools that delegate: `task` or one tool for each agent, and `tasks`, over one port.

`Tasks` is that port: sub-agents in this process, jobs of a program, or jobs of a job. What differs
between them for a model, such as texts and arguments, is in `DelegationTexts` and in the model of a
task.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, Literal, Protocol

from google.adk.events import Event
from google.adk.tools.tool_context import ToolContext
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, create_model

from ...cancellation import cancel_and_wait
from ..tool import CheckedTool, ProgressTool, about_tasks, tabular
from .roster import agent_identifier
from .task_record import TaskResult

TaskSteps = AsyncGenerator[Event | TaskResult]
"""Progress events, then one result."""

Emit = Callable[[Event], None]
"""Takes a progress event."""

SubagentType = Annotated[str, Field(validation_alias=AliasChoices("subagent_type", "agent_type"))]
"""The agent that does a task; other harnesses call the argument `agent_type`."""

DelegationStyle = Literal["task", "agent_tools"]
"""One tool for all agents, or one tool for each; `tasks` is there in both styles."""


class Tasks(Protocol):
    """Where the tasks of one agent are done."""

    def run(
        self, items: Sequence[dict[str, Any]], tool_context: ToolContext, *, combined: bool
    ) -> TaskSteps | Awaitable[TaskResult]:
        """Have the tasks of one call done, at the same time.

        Args:
            items: The tasks, as the model wrote them: those of `task` have been checked.
            tool_context: The call.
            combined: The result is that of `tasks`, not that of one task.

        Returns:
            Progress and a result for a `ProgressTool`, or the result alone for a `MethodTool`.
        """


@dataclass(frozen=True)
class DelegationTexts:
    """What a model reads about the tools."""

    task: str
    tasks: str
    agent_tool: Callable[[str, str], str]
    """Returns the description of the tool for an agent, given its name and its description."""
    items: str | None = None
    """The description of the argument of `tasks`."""


@dataclass(frozen=True)
class TaskTools:
    """The tools of one agent."""

    port: Tasks
    task_model: type[BaseModel]
    """The arguments of `task`."""
    texts: DelegationTexts
    tool: type[CheckedTool] = ProgressTool
    """`MethodTool` where `Tasks.run` shows no progress."""

    def tools(self, style: DelegationStyle, agents: Mapping[str, str]) -> list[CheckedTool]:
        """Return the tools.

        Args:
            style: `task` for all agents, or one tool for each.
            agents: The agents that may be called, with their descriptions.
        """
        tasks = self.tool(
            self.tasks, description=self.texts.tasks, arguments=_tasks_model(self.texts.items)
        )
        if style == "agent_tools":
            return [*(self._agent_tool(name, text) for name, text in agents.items()), tasks]
        return [
            self.tool(self.task, description=self.texts.task, arguments=self.task_model),
            tasks,
        ]

    @about_tasks
    def task(self, tool_context: ToolContext, **item: Any) -> TaskSteps | Awaitable[TaskResult]:
        """Delegate one task. The model reads `DelegationTexts.task`."""
        return self.port.run([item], tool_context, combined=False)

    @about_tasks
    @tabular
    def tasks(
        self, tasks: list[dict[str, Any]], tool_context: ToolContext
    ) -> TaskSteps | Awaitable[TaskResult]:
        """Delegate tasks. The model reads `DelegationTexts.tasks`."""
        return self.port.run(tasks, tool_context, combined=True)

    def _agent_tool(self, agent: str, description: str) -> CheckedTool:
        made = self.tool(
            partial(self.task, subagent_type=agent),
            name=agent_identifier(agent),
            description=self.texts.agent_tool(agent, description),
            arguments=_without_agent(self.task_model),
        )
        made.delegates_to_one = True
        return made


async def with_progress(
    work: Callable[[Emit], Coroutine[Any, Any, TaskResult]],
    stop: Callable[[asyncio.Task[TaskResult]], Awaitable[object]] = cancel_and_wait,
) -> TaskSteps:
    """Yield the progress events of work, and then its result.

    Args:
        work: Gets the function to call with each event.
        stop: Ends it if the caller does not want its result any more.

    Raises:
        Exception: What the work raises.
    """
    steps: asyncio.Queue[Event | None] = asyncio.Queue()
    task = asyncio.create_task(work(steps.put_nowait))
    task.add_done_callback(lambda _: steps.put_nowait(None))
    try:
        while (event := await steps.get()) is not None:
            yield event
        yield await task
    finally:
        await stop(task)


@cache
def _tasks_model(description: str | None) -> type[BaseModel]:
    items: Any = (list[dict[str, Any]], Field(description=description))
    return create_model("tasks_arguments", __config__=ConfigDict(extra="forbid"), tasks=items)


@cache
def _without_agent(task_model: type[BaseModel]) -> type[BaseModel]:
    """Return the arguments of a tool that delegates to one agent."""
    fields: dict[str, Any] = {
        name: (field.annotation, field)
        for name, field in task_model.model_fields.items()
        if name != "subagent_type"
    }
    return create_model("delegate_arguments", __config__=ConfigDict(extra="forbid"), **fields)


def task_refusal(description: str, subagent_type: str, agents: Collection[str]) -> str | None:
    """Return why a task cannot be done, for the model; None if it can.

    Args:
        description: What is to be done.
        subagent_type: The agent that the model wants to call.
        agents: The names of those that it may call.
    """
    if not description.strip():
        return "description is empty: say completely what to do."
    if subagent_type not in agents:
        return f"There is no subagent_type {subagent_type!r}; there are: {', '.join(agents)}."
    return None


def first_fault(error: ValidationError) -> str:
    """Return what is wrong with arguments, without the value that is wrong."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
