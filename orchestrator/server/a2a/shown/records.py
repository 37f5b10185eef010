"""Job records as tasks: their ids, contexts and states."""

from __future__ import annotations

from collections.abc import Mapping

from a2a.types import TaskState

from fanout.orchestrator.jobs.state import JobRecord, JobState

CONTEXT_LABEL = "a2a.context"
MESSAGE_LABEL = "a2a.message"
DIGEST_LABEL = "a2a.digest"

STATES: Mapping[JobState, TaskState] = {
    JobState.QUEUED: TaskState.TASK_STATE_SUBMITTED,
    JobState.RUNNING: TaskState.TASK_STATE_WORKING,
    JobState.WAITING: TaskState.TASK_STATE_WORKING,
    JobState.SUCCEEDED: TaskState.TASK_STATE_COMPLETED,
    JobState.FAILED: TaskState.TASK_STATE_FAILED,
    JobState.TIMED_OUT: TaskState.TASK_STATE_FAILED,
    JobState.CANCELLED: TaskState.TASK_STATE_CANCELED,
}
"""A waiting job works, as far as its client can tell: it is its tasks that it waits for. When it
waits for decisions, `input_required` takes the place of its state."""


def context_of(record: JobRecord) -> str:
    """Return the context of a job: that of its first message, else the job itself."""
    return record.labels.get(CONTEXT_LABEL, record.id)


def changed_at(record: JobRecord) -> float:
    """Return when a job came into its state, as far as its record tells."""
    return record.finished_at or record.started_at or record.submitted_at
