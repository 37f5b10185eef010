"""The states of a job, and its record."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from .spec import JobSpec
from .timeline import LandedChanges, Phase


class JobState(StrEnum):
    """The state of a job. Terminal states never change."""

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


LIVE_STATES = frozenset(JobState) - TERMINAL_STATES


class Activity(BaseModel):
    """What a running job does at this moment. It is up to two seconds old, and may be missing."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: str
    """`start` (of the agent), `environment` (its set-up), `sandbox`, `model`, `queue` (the rate
    limit of a model), `tool`, `verification` or `landing`; other releases may know more."""
    since: float
    """When it began, in seconds since the epoch."""
    model: str | None = None
    """The model that is asked."""
    attempt: int = 1
    """The number of the attempt to get the model's reply, from 1."""
    error: str | None = None
    """Why the previous attempt failed: a status such as `503`, or a few words."""
    tokens: int = 0
    """The approximate number of tokens of the reply that were received."""
    tool: str | None = None
    """The tool that is running."""


class JobRecord(JobSpec):
    """A job in the ledger: its specification and its state, as `fanout show` prints it.

    Times are seconds since the epoch, by the Redis server's clock.
    """

    state: JobState
    attempt: int
    """The number of times that a worker has claimed the job."""
    worker: str | None = None
    submitted_at: float
    started_at: float | None = None
    finished_at: float | None = None
    waiting_for: str | None = None
    """What a queued or waiting job waits for, as a text for people."""
    waits_until: float | None = None
    """When the model for which the job waits is tried again; None: it waits for no model."""
    approvals: tuple[str, ...] = ()
    """The ids of the approvals for which the job waits."""
    activity: Activity | None = None
    """What it does at this moment; None: it does not run, or it is not known."""
    last_event: str | None = None
    """The newest journal event, in one line."""
    reason: str | None = None
    """Why the job did not succeed, in words for people; None for others."""
    next_step: str | None = None
    """What a person can do about it, in a sentence that may end with a command."""
    error_type: str | None = None
    """The type of its result's error, for programs."""
    phases: tuple[Phase, ...] = ()
    """When it was queued, running, waiting, verifying or landing its children's changes, oldest
    first; of a very long job the newest ones."""
    landed: LandedChanges | None = None
    """What became of its changes in the files of its parent; None: nothing was decided yet."""
    tasks_failed: int = 0
    """The number of submitted jobs of the tree that failed or timed out; set for the tree's root.
    """
    tasks_unmerged: int = 0
    """The number of jobs of the tree whose changes could not be merged into their parent's files;
    set for the tree's root."""
    batch: str | None = None
    """The id of the first job of a joint submission of several trees; None: it was submitted alone.
    """
    trace_id: str = ""
    """The id of the job's trace, for searches in a tracing system and in logs: 32 hexadecimal
    digits."""
    wire: int = 1
    """The version that a worker must read to run the job (`versions.py`)."""
