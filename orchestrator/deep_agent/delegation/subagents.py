"""Sub-agents in this process: delegation by `task` and `tasks`, or by one tool for each sub-agent.

A child is a separate run: it sees the description and the context that it is given, but not its
parent's messages, plan or state, and only its last message is returned. Its changes to files are
staged, and merged into the parent's files when it has succeeded. So are those of its commands,
which run in a copy; where none can be made, one child with a shell at a time works on the files
directly.

The tasks of one call are done at the same time. A call may be interrupted by questions to a person,
which are asked one at a time. Meanwhile the session's state holds the records of the tasks that are
done, and the runs of those that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import BaseNode

from ...cancellation import cancel_or_abandon
from ..approval import PendingApproval
from ..backends.state import DictState, StateBackend
from ..middleware import Middleware
from ..prompts import delegation_prompt
from ..tool import CheckedTool
from .child import Child, Question
from .roster import ABANDON_SECONDS, MAX_DEPTH
from .task_record import (
    TaskRecord,
    TaskResult,
    combined_answer,
)
from .task_tools import (
    DelegationStyle,
    DelegationTexts,
    Emit,
    TaskSteps,
    TaskTools,
    with_progress,
)
from .team import Task, Team

PAUSED_CALL_PREFIX = "subagents:"
"""Prefix of the state key of a paused call; its id follows."""

Outcome = TaskRecord | Question

TEXTS = DelegationTexts(
    task="""\
Delegate one self-contained task to a sub-agent and wait for its result.

It works on your files; what it changed is put into them when it has succeeded, merged with
what others changed meanwhile. Call this several times in one reply to run sub-agents at the
same time. Results that are together too long come as a table with the last one; each whole
one is in /task_results/TASK_ID.md.""",
    tasks="""\
Delegate many tasks at once and wait for all of them.

One that fails does not stop the others. `success` is true only if all succeeded; `results`
has one answer as of `task` for each, in order.""",
    agent_tool=(
        "Delegate one self-contained task to the sub-agent {} and wait for its result. {}".format
    ),
    items="Objects with description and, if wanted, subagent_type, context, timeout_seconds, "
    "inherit, as for task",
)


class DelegatedCall:
    """One call, begun or resumed.

    Args:
        team: The sub-agents.
        tasks: The tasks; a text is the reason why a task cannot be done.
        context: The context of the parent's call.
        seconds: The time limit of the whole call; None for no limit.
        combined: The result is that of `tasks`, not that of one task.
    """

    def __init__(
        self,
        team: Team,
        tasks: Sequence[Task | str],
        context: ToolContext,
        seconds: float | None,
        *,
        combined: bool,
    ) -> None:
        self._team = team
        self._combined = combined
        self._tasks = tasks
        self._context = context
        self._seconds = seconds
        self._key = f"{PAUSED_CALL_PREFIX}{context.function_call_id}"

    async def run(self, emit: Emit) -> TaskResult:
        """Return the result of the call, or one that says that a person is asked.

        Args:
            emit: Called with each progress event.

        Raises:
            Exception: One of the team's fatal errors.
        """
        saved: Mapping[str, Any] = self._context.state.get(self._key) or {}
        now = asyncio.get_running_loop().time()
        deadline = None if self._seconds is None else now + self._seconds
        workers = [
            asyncio.create_task(self._outcome(number, saved, deadline, emit))
            for number in range(len(self._tasks))
        ]
        try:
            if workers:
                await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            outcomes = [worker.result() for worker in workers if worker.done()]
        finally:
            # Each of them waits itself for its child to end.
            await cancel_or_abandon(2 * ABANDON_SECONDS, *workers)
        for number, outcome in enumerate(outcomes):
            if isinstance(outcome, Question):
                return self._pause(outcomes, number, outcome.pending)
        if saved:
            self._context.state[self._key] = None
        answers = [one.answer() for one in outcomes if isinstance(one, TaskRecord)]
        return combined_answer(answers) if self._combined else answers[0]

    async def _outcome(
        self, number: int, saved: Mapping[str, Any], deadline: float | None, emit: Emit
    ) -> Outcome:
        """Do one task, as far as it goes."""
        before = saved["tasks"][number] if saved else {}
        if "record" in before:
            return TaskRecord.model_validate(before["record"])
        task = self._tasks[number]
        if isinstance(task, str):
            return TaskRecord(task_id=self._task_id(number), error=task)
        child = await self._team.child(task, self._context, self._task_id(number))
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout_at(deadline):
                    await stack.enter_async_context(self._team.slots())
                    await stack.enter_async_context(child.opened())
            except TimeoutError:
                reason = f"It was not begun: the {self._seconds:g} seconds for all were over."
                return TaskRecord(task_id=child.task_id, error=reason)
            if before:
                is_asked = saved["asked"] == number
                child.load(before, self._context.tool_confirmation if is_asked else None)
            return await self._worked(child, task, deadline, emit)

    async def _worked(
        self, child: Child, task: Task, deadline: float | None, emit: Emit
    ) -> Outcome:
        seconds = task.timeout_seconds or self._team.limits.timeout_seconds
        if deadline is not None:
            left = max(deadline - asyncio.get_running_loop().time(), 0.001)
            seconds = left if seconds is None else min(seconds, left)
        try:
            return await child.work(task.description, task.context, seconds, emit)
        except Exception as error:
            if self._team.is_fatal(error):
                raise
            return await child.failed(error)

    def _pause(
        self, outcomes: Sequence[Outcome], asked: int, pending: PendingApproval
    ) -> TaskResult:
        """Ask a child's question in the parent's run; store all children in its state."""
        self._context.state[self._key] = {
            "asked": asked,
            "tasks": [
                one.saved if isinstance(one, Question) else {"record": one.model_dump(mode="json")}
                for one in outcomes
            ],
        }
        self._context.request_confirmation(hint=pending.hint, payload=pending.payload())
        # The model must not continue with a pause as if it were a result.
        self._context.actions.skip_summarization = True
        return {
            "status": "waiting_for_approval",
            "message": f"{pending.agent} waits for an approval.",
        }

    def _task_id(self, number: int) -> str:
        call_id = str(self._context.function_call_id)
        return call_id if len(self._tasks) == 1 else f"{call_id}.{number}"


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


class Subagents(Middleware):
    """The sub-agents of one agent.

    Args:
        team: The sub-agents.
        delegation: One `task` tool, or one tool for each sub-agent.

    Raises:
        ValueError: The tree is too deep, or a child cannot be made as specified.
    """

    def __init__(self, team: Team, delegation: DelegationStyle) -> None:
        self._team = team
        self._delegation = delegation
        no_files = StateBackend(DictState())
        probes = [(member, team.agent(member, no_files)) for member in team.members.values()]
        self.depth = 1 + max(_count_levels(probe) for _, probe in probes)
        """Levels of agents below the parent."""
        if self.depth > MAX_DEPTH:
            raise ValueError(f"Sub-agents are {self.depth} levels deep; {MAX_DEPTH} are allowed.")
        self._toolsets = [
            tool
            for member, probe in probes
            if isinstance(member.made, BaseNode) or member.made.keys() & {"tools", "subagents"}
            for tool in _tools_below(probe)
            if isinstance(tool, BaseToolset)
        ]

    def run(
        self, items: Sequence[dict[str, Any]], tool_context: ToolContext, *, combined: bool
    ) -> TaskSteps:
        """See `Tasks.run`.

        Raises:
            Exception: One of the team's fatal errors.
        """
        tasks = [self._team.task(item, number) for number, item in enumerate(items)]
        seconds = self._team.limits.tasks_timeout_seconds if combined else None
        call = DelegatedCall(self._team, tasks, tool_context, seconds, combined=combined)
        return with_progress(call.run, partial(cancel_or_abandon, 3 * ABANDON_SECONDS))

    def tools(self) -> list[BaseTool]:
        """Return `task`, or one tool for each sub-agent; and `tasks`."""
        agents = {member.name: member.description for member in self._team.members.values()}
        tools = TaskTools(self, Task, TEXTS).tools(self._delegation, agents)
        for tool in tools:
            tool.levels = self.depth
        return [*tools]

    def all_tools(self) -> list[BaseTool | BaseToolset]:
        """Return the tools, and a toolset that closes the sub-agents' own toolsets."""
        return [*self.tools(), *([ChildToolsets(self._toolsets)] if self._toolsets else [])]

    async def instruction(self, context: ReadonlyContext, tools: frozenset[str]) -> str:
        """Explain when to delegate, and to which sub-agents."""
        del context, tools
        listed = [(member.name, member.description) for member in self._team.members.values()]
        return delegation_prompt(listed if self._delegation == "task" else [])


def _tree(node: BaseNode) -> Iterator[BaseNode]:
    """Yield an agent, and the agents below it that ADK itself runs."""
    yield node
    for below in node.sub_agents if isinstance(node, BaseAgent) else ():
        yield from _tree(below)


def _tools_below(node: BaseNode) -> list[Any]:
    return [tool for each in _tree(node) if isinstance(each, LlmAgent) for tool in each.tools]


def _count_levels(node: BaseNode) -> int:
    """Return the number of levels of sub-agents below an agent."""
    return max(
        (tool.levels for tool in _tools_below(node) if isinstance(tool, CheckedTool)), default=0
    )
