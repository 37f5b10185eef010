"""Jobs as tasks, for one request."""

from __future__ import annotations

from dataclasses import dataclass

from a2a.types import Message, Part, Role, Task, TaskState, TaskStatus

from fanout.orchestrator.jobs.failure_texts import what_happened
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.state import JobRecord, JobState
from fanout.orchestrator.server.a2a.shown.approval_requests import Waiting, asking, waiting_below
from fanout.orchestrator.server.a2a.shown.artifacts import artifacts_of
from fanout.orchestrator.server.a2a.shown.conversation import history
from fanout.orchestrator.server.a2a.shown.parts import time_of
from fanout.orchestrator.server.a2a.shown.records import STATES, changed_at, context_of
from fanout.orchestrator.server.owned_jobs import OwnedJobs

INTERRUPTED = frozenset({
    TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED,
})  # fmt: skip


@dataclass(frozen=True)
class Snapshot:
    """A task at one moment, and from where its updates follow."""

    task: Task
    record: JobRecord
    after: str
    """The last journal entry that the task accounts for."""
    waiting: frozenset[str]
    """The approvals that it asks for."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing follows."""
        return self.record.state.is_terminal


class TaskView:
    """Shows the jobs of one caller as tasks.

    Args:
        jobs: The caller's jobs.
        base_url: The origin of the service.
        hitl: Whether the client has activated the extension `hitl/v1`.
    """

    def __init__(self, jobs: OwnedJobs, base_url: str, *, hitl: bool) -> None:
        self.jobs = jobs
        self._base_url = base_url
        self._hitl = hitl

    async def snapshot(self, job_id: str, history_length: int | None = None) -> Snapshot:
        """Return a job as a task.

        The journal is read before the record: what happens in between follows as an update, so
        that nothing is missed.

        Raises:
            UnknownJob: There is none with this id, for this caller.
        """
        messages, after = await history(self.jobs, await self.jobs.get(job_id), history_length)
        record = await self.jobs.get(job_id)
        waiting = [] if record.state.is_terminal else await waiting_below(self.jobs, record)
        task = await self.listed(record, waiting, artifacts=True)
        task.history.extend([] if history_length == 0 else messages)
        return Snapshot(task, record, after, frozenset(one.approval.id for one in waiting))

    async def listed(
        self, record: JobRecord, waiting: list[Waiting], *, artifacts: bool = False
    ) -> Task:
        """Return a job as a task of a list, without its history."""
        result = await self.jobs.result(record.id) if record.state.is_terminal else None
        task = Task(id=record.id, context_id=context_of(record))
        task.status.CopyFrom(self.status(record, waiting, result))
        task.metadata.update({"fanout.agent": record.agent, "fanout.state": record.state.value})
        if artifacts and result is not None:
            task.artifacts.extend(await artifacts_of(self.jobs, result, self._base_url))
        return task

    def status(
        self, record: JobRecord, waiting: list[Waiting], result: JobResult | None = None
    ) -> TaskStatus:
        """Return the status of a job.

        Args:
            record: The job.
            waiting: The calls of it and below it that wait for a decision.
            result: Its result when it has ended.
        """
        if waiting and not record.state.is_terminal:
            asked = max(one.approval.requested_at or 0 for one in waiting)
            return TaskStatus(
                state=TaskState.TASK_STATE_INPUT_REQUIRED,
                message=asking(record, waiting, hitl=self._hitl),
                timestamp=time_of(max(asked, changed_at(record))),
            )
        status = TaskStatus(state=STATES[record.state], timestamp=time_of(changed_at(record)))
        if record.state.is_terminal and record.state is not JobState.SUCCEEDED:
            status.message.CopyFrom(_failure(record, result))
        return status


def _failure(record: JobRecord, result: JobResult | None) -> Message:
    """Return why a job did not succeed: what its record shows, and the type as metadata."""
    error = result.error if result else None
    happened = what_happened(error.type, error.message) if error else None
    text = happened or record.reason or record.state.value
    message = Message(
        message_id=f"{record.id}:end",
        task_id=record.id,
        context_id=context_of(record),
        role=Role.ROLE_AGENT,
        parts=[Part(text=text)],
    )
    if error:
        message.metadata.update({"adk_error_code": error.type, "fanout.retryable": error.retryable})
    return message
