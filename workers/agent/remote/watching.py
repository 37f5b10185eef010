"""Watching a remote agent's task until its work stops.

What a task has come to is asked for (`GetTask`); the stream of its updates only shows progress and
saves asking often. So nothing is lost with a stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from a2a.types import StreamResponse, Task, TaskState

from fanout.orchestrator.jobs.failures import RemoteAgentUnavailable
from fanout.orchestrator.remote_agents import RemoteConnection
from fanout.workers.agent.remote.conversation import State
from fanout.workers.heartbeat import elapsed_clock

FIRST_PAUSE_SECONDS = 0.25
"""Before a task is asked for again."""
LONGEST_PAUSE_SECONDS = 5.0
"""Between two questions: an agent that does not stream works for seconds at least."""
OUTAGE_SECONDS = 60.0
"""How long an agent may be unreachable, while the attempt goes on asking: it restarts."""

STATES: dict[int, State] = {
    TaskState.TASK_STATE_COMPLETED: "completed",
    TaskState.TASK_STATE_FAILED: "failed",
    TaskState.TASK_STATE_REJECTED: "rejected",
    TaskState.TASK_STATE_CANCELED: "canceled",
    TaskState.TASK_STATE_INPUT_REQUIRED: "input_required",
    TaskState.TASK_STATE_AUTH_REQUIRED: "auth_required",
}
"""The states in which an agent does not work on a task."""
QUESTIONS = frozenset({"input_required", "auth_required"})
"""Those in which it waits for a person."""

Show = Callable[[StreamResponse], Awaitable[None]]


async def stopped_task(
    remote: RemoteConnection, task_id: str, show: Show, *, asked_by: str = ""
) -> Task:
    """Return a task when the agent's work on it has stopped.

    Args:
        remote: The connection to the agent.
        task_id: The task.
        show: Receives the updates of the task.
        asked_by: The id of the question that was answered: a task that still asks it goes on.

    Raises:
        RemoteAgentUnavailable: The agent was unreachable for `OUTAGE_SECONDS`.
        JobFailure: See `RemoteConnection`.
    """
    pause, reached_at = FIRST_PAUSE_SECONDS, elapsed_clock()
    while True:
        try:
            task = await remote.task(task_id)
            reached_at = elapsed_clock()
            if has_stopped(task, asked_by):
                return task
            if remote.streams and await _follow(remote, task_id, show):
                pause = FIRST_PAUSE_SECONDS
                continue
        except RemoteAgentUnavailable:
            if elapsed_clock() - reached_at > OUTAGE_SECONDS:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def has_stopped(task: Task, asked_by: str) -> bool:
    """Return whether an agent does not work on a task, other than because of an old question."""
    state = STATES.get(task.status.state)
    is_asked = state in QUESTIONS
    message = task.status.message.message_id
    return state is not None and not (is_asked and message and message == asked_by)


async def _follow(remote: RemoteConnection, task_id: str, show: Show) -> bool:
    """Show the updates of a task until its stream ends; return whether its state was among them."""
    has_state = False
    async for update in remote.updates(task_id):
        await show(update)
        has_state |= update.HasField("status_update") and (
            update.status_update.status.state in STATES
        )
    return has_state
