"""What comes back from a job."""

from __future__ import annotations

from pydantic import Field, JsonValue

from orchestrator.jobs.changes import FileChange
from orchestrator.jobs.spec import BlobId, JobId, WireModel
from orchestrator.jobs.state import JobState

MAX_SUMMARY_CHARACTERS = 4_000
"""A summary is read by another model: this is about a thousand tokens."""


class Usage(WireModel):
    """What a job consumed, summed over its attempts."""

    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = None
    """None where the model's prices are not known."""
    tool_calls: int = 0


class JobError(WireModel):
    """A failure as data: it crosses the wire by name and words, never as a pickle."""

    type: str
    message: str
    retryable: bool = False


class ResultSoFar(WireModel):
    """What is known of a job's result before its end: reported if it ends without a worker."""

    files_modified: tuple[FileChange, ...] = ()
    """The first of them, where they are many."""
    changes: BlobId | None = None
    usage: Usage = Usage()
    sandbox: str | None = None


class JobResult(WireModel):
    """How a job ended and what it brought."""

    job_id: JobId
    state: JobState
    success: bool
    summary: str = Field(default="", max_length=MAX_SUMMARY_CHARACTERS)
    output: JsonValue = None
    """The structured answer, valid against the job's `output_schema`; None without one."""
    files_modified: tuple[FileChange, ...] = ()
    changes: BlobId | None = None
    """The blob of the change bundle; None when nothing changed."""
    usage: Usage = Usage()
    attempts: int = 0
    queued_seconds: float = 0
    execution_seconds: float = 0
    """What counts against `timeout_seconds`: its attempts, and the time in which it waited for
    children alone. So the seconds of a parent and of its children are partly the same ones."""
    error: JobError | None = None
    unread_messages: tuple[str, ...] = ()
    """How each message begins that was taken for the job, and that its agent did not read before
    its end."""
    sandbox: str | None = None
    """What the commands ran in: `docker`, or `local`, which isolates nothing."""
