"""One call of a tool that delegates: its tasks, which sub-agents do at the same time.

A call may be interrupted by questions to a person, which are asked one at a time. Meanwhile the
session's state holds the records of the tasks that are done, and the runs of those that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from google.adk.tools.tool_context import ToolContext

from fanout.orchestrator.cancellation import cancel_or_abandon
from fanout.orchestrator.deep_agent.approval.requests import PendingApproval
from fanout.orchestrator.deep_agent.delegation.children.child import Child, Question, not_begun
from fanout.orchestrator.deep_agent.delegation.children.child_run import Emit, task_message
from fanout.orchestrator.deep_agent.delegation.limits import ABANDON_SECONDS
from fanout.orchestrator.deep_agent.delegation.task import Task
from fanout.orchestrator.deep_agent.delegation.task_record import Answer, TaskRecord
from fanout.orchestrator.deep_agent.delegation.team import Team

PAUSED_CALL_PREFIX = "subagents:"
"""Prefix of the state key of a paused call; its id follows."""

Outcome = TaskRecord | Question


class DelegatedCall:
    """One call, begun or resumed.

    Args:
        team: The sub-agents.
        tasks: The tasks; a text is the reason why a task cannot be done.
        context: The context of the parent's call.
        seconds: The time limit of the whole call; None for no limit.
    """

    def __init__(
        self,
        team: Team,
        tasks: Sequence[Task | str],
        context: ToolContext,
        seconds: float | None = None,
    ) -> None:
        self._team = team
        self._tasks = tasks
        self._context = context
        self._seconds = seconds
        self._key = f"{PAUSED_CALL_PREFIX}{context.function_call_id}"

    async def run(self, emit: Emit) -> list[Answer] | Answer:
        """Return the answers of all tasks, or one that says that a person is asked.

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
        return [one.answer() for one in outcomes if isinstance(one, TaskRecord)]

    async def _outcome(
        self, number: int, saved: Mapping[str, Any], deadline: float | None, emit: Emit
    ) -> Outcome:
        """Do one task, as far as it goes."""
        before = saved["tasks"][number] if saved else {}
        if "record" in before:
            return TaskRecord.model_validate(before["record"])
        task = self._tasks[number]
        if isinstance(task, str):
            return not_begun(self._task_id(number), task)
        child = await self._team.child(task, self._context, self._task_id(number))
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout_at(deadline):
                    await stack.enter_async_context(self._team.slots())
                    await stack.enter_async_context(child.opened())
            except TimeoutError:
                reason = f"It was not begun: the {self._seconds:g} seconds for all were over."
                return not_begun(child.task_id, reason)
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
            message = task_message(task.description, task.context)
            return await child.work(message, seconds, emit)
        except Exception as error:
            if self._team.is_fatal(error):
                raise
            return await child.failed(error)

    def _pause(self, outcomes: Sequence[Outcome], asked: int, pending: PendingApproval) -> Answer:
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
