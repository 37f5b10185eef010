"""The states of a job, and the record that `show` prints."""

from __future__ import annotations

from enum import StrEnum

from orchestrator.jobs.spec import JobSpec


class JobState(StrEnum):
    """Where a job stands. Terminal states never change."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether the job has ended."""
        return self in TERMINAL_STATES


TERMINAL_STATES = frozenset(
    {JobState.SUCCEEDED, JobState.FAILED, JobState.TIMED_OUT, JobState.CANCELLED},
)


class JobRecord(JobSpec):
    """A job as the ledger has it: its specification and where it stands.

    Times are seconds since the epoch, by the Redis server's clock.
    """

    state: JobState
    attempt: int
    """How many times a worker has claimed the job."""
    worker: str | None = None
    submitted_at: float
    started_at: float | None = None
    finished_at: float | None = None
    waiting_for: str | None = None
    """Why a job that is not running does not run, in words."""
    approvals: tuple[str, ...] = ()
    """The ids of the approvals for which the job waits."""
    last_event: str | None = None
    """The newest journal event, in one line."""
    wire: int = 1
    """The version that a worker must know to run the job (`wire.py`)."""
