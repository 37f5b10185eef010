"""The tools that delegate to sub-agents in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any

from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.events import Event
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.tool_context import ToolContext
from pydantic import Field

from fanout.orchestrator.cancellation import cancel_or_abandon
from fanout.orchestrator.deep_agent.delegation.delegated_call import DelegatedCall
from fanout.orchestrator.deep_agent.delegation.limits import ABANDON_SECONDS
from fanout.orchestrator.deep_agent.delegation.roster import GENERAL_PURPOSE, Member
from fanout.orchestrator.deep_agent.delegation.task import Task, task_of
from fanout.orchestrator.deep_agent.delegation.task_record import Answer, combined_answer
from fanout.orchestrator.deep_agent.delegation.team import Team
from fanout.orchestrator.deep_agent.failures import ToolMistake
from fanout.orchestrator.deep_agent.names import SubagentType, agent_identifier
from fanout.orchestrator.deep_agent.progress_tool import ProgressTool
from fanout.orchestrator.deep_agent.tool import tabular

Steps = AsyncGenerator[Event | Answer]
"""Progress events, then one result."""

Description = Annotated[
    str,
    Field(
        description="What to do, complete in itself: "
        "the sub-agent sees nothing of this conversation"
    ),
]
Context = Annotated[
    str, Field(description="What it should know besides: findings, constraints, file paths")
]
Seconds = Annotated[
    float | None,
    Field(gt=0, allow_inf_nan=False, description="How long it may take; leave it out as a rule"),
]
Tasks = Annotated[
    list[dict[str, Any]],
    Field(
        description="Objects with description and, if wanted, subagent_type, context, "
        "timeout_seconds, as for task"
    ),
]


async def delegated(
    team: Team,
    tasks: Sequence[Task | str],
    tool_context: ToolContext,
    *,
    seconds: float | None = None,
    combined: bool = False,
) -> Steps:
    """Have tasks done: yield progress events, then one result.

    Args:
        team: The sub-agents.
        tasks: The tasks; a text is the reason why one cannot be done.
        tool_context: The context of the call.
        seconds: The time limit of the whole call; None for no limit.
        combined: The result is that of `tasks`, not that of one task.

    Raises:
        Exception: One of the team's fatal errors.
    """
    checked = [task if isinstance(task, str) else team.refusal(task) or task for task in tasks]
    steps: asyncio.Queue[Event | None] = asyncio.Queue()
    call = DelegatedCall(team, checked, tool_context, seconds)
    work = asyncio.create_task(call.run(steps.put_nowait))
    work.add_done_callback(lambda _: steps.put_nowait(None))
    try:
        while (event := await steps.get()) is not None:
            yield event
        answers = await work
        if isinstance(answers, list):
            yield combined_answer(answers) if combined else answers[0]
        else:
            yield answers
    finally:
        await cancel_or_abandon(3 * ABANDON_SECONDS, work)


class TaskTool(ProgressTool):
    """The tool `task`, which calls any sub-agent by name."""

    def __init__(self, team: Team) -> None:
        self._team = team
        super().__init__(self.task)

    async def task(
        self,
        description: Description,
        subagent_type: Annotated[
            SubagentType, Field(description="Which sub-agent does it")
        ] = GENERAL_PURPOSE,
        context: Context = "",
        timeout_seconds: Seconds = None,
        *,
        tool_context: ToolContext,
    ) -> Steps:
        """Delegate one self-contained task to a sub-agent and wait for its result.

        It works on your files; what it changed is put into them when it has succeeded, merged with
        what others changed meanwhile. Call this several times in one reply to run sub-agents at the
        same time.
        """
        task = Task(
            description=description,
            subagent_type=subagent_type,
            context=context,
            timeout_seconds=timeout_seconds,
        )
        async for step in delegated(self._team, [task], tool_context):
            yield step


class TasksTool(ProgressTool):
    """The tool `tasks`, which calls many sub-agents and combines their answers."""

    def __init__(self, team: Team, depth: int) -> None:
        self._team = team
        self.depth = depth
        """Levels of agents below the one that has the tool."""
        super().__init__(self.tasks)

    @tabular
    async def tasks(self, tasks: Tasks, *, tool_context: ToolContext) -> Steps:
        """Delegate many tasks at once and wait for all of them.

        One that fails does not stop the others. `success` is true only if all succeeded; `results`
        has one answer as of `task` for each, in order.
        """
        given = [_task_or_reason(item, number) for number, item in enumerate(tasks)]
        seconds = self._team.limits.tasks_timeout_seconds
        async for step in delegated(
            self._team, given, tool_context, seconds=seconds, combined=True
        ):
            yield step


class AgentTool(ProgressTool):
    """One sub-agent as a tool."""

    delegates_to_one = True

    def __init__(self, team: Team, member: Member) -> None:
        self._team = team
        self._member = member
        super().__init__(self.delegate)
        self.name = agent_identifier(member.name)
        self.description = (
            f"Delegate one self-contained task to the sub-agent {member.name} and wait for its "
            f"result. {member.description}"
        )

    async def delegate(
        self,
        description: Description,
        context: Context = "",
        timeout_seconds: Seconds = None,
        *,
        tool_context: ToolContext,
    ) -> Steps:
        """Call the sub-agent."""
        task = Task(
            description=description,
            subagent_type=self._member.name,
            context=context,
            timeout_seconds=timeout_seconds,
        )
        async for step in delegated(self._team, [task], tool_context):
            yield step


class ChildToolsets(BaseToolset):
    """A toolset without tools, with which a Runner closes the sub-agents' toolsets.

    They cannot be closed at the end of a child's run: its siblings, the next child of the same name
    and sometimes the parent use the same toolsets, and ADK cannot open one again.
    """

    def __init__(self, toolsets: Sequence[BaseToolset]) -> None:
        super().__init__()
        self._toolsets = toolsets

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        """Return no tools."""
        del readonly_context
        return []

    async def close(self) -> None:
        """Close all of the sub-agents' toolsets.

        Raises:
            BaseException: The first exception of a toolset's `close`.
        """
        ended = await asyncio.gather(
            *(toolset.close() for toolset in self._toolsets), return_exceptions=True
        )
        for failure in ended:
            if isinstance(failure, BaseException):
                raise failure


def _task_or_reason(item: dict[str, Any], number: int) -> Task | str:
    try:
        return task_of(item, number)
    except ToolMistake as mistake:
        return str(mistake)
