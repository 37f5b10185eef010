"""The result of a job."""

from __future__ import annotations

from pydantic import Field, JsonValue

from orchestrator.jobs.changes import FileChange
from orchestrator.jobs.spec import BlobId, JobId, WireModel
from orchestrator.jobs.state import JobState

MAX_SUMMARY_CHARACTERS = 4_000
"""About a thousand tokens: another model reads the summary."""


class Usage(WireModel):
    """The resources that a job consumed, summed over its attempts."""

    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = None
    """None when the model's prices are unknown."""
    tool_calls: int = 0


class JobError(WireModel):
    """A failure as data: it is sent by name and message, never as a pickle."""

    type: str
    message: str
    retryable: bool = False


class ResultSoFar(WireModel):
    """The known part of a job's result before its end; reported if it ends without its worker."""

    files_modified: tuple[FileChange, ...] = ()
    """The first ones, when there are many."""
    changes: BlobId | None = None
    usage: Usage = Usage()
    sandbox: str | None = None


class JobResult(WireModel):
    """The end of a job: its state, its answer and its changes."""

    job_id: JobId
    state: JobState
    success: bool
    summary: str = Field(default="", max_length=MAX_SUMMARY_CHARACTERS)
    output: JsonValue = None
    """The structured answer, valid against the job's `output_schema`; None without a schema."""
    files_modified: tuple[FileChange, ...] = ()
    changes: BlobId | None = None
    """The blob of the change bundle; None when nothing changed."""
    usage: Usage = Usage()
    attempts: int = 0
    queued_seconds: float = 0
    execution_seconds: float = 0
    """The time that counts against `timeout_seconds`: that of its attempts, and that in which it
    waited for nothing but children. The times of a parent and of its children overlap."""
    error: JobError | None = None
    unread_messages: tuple[str, ...] = ()
    """The beginnings of the messages that were accepted for the job, but that its agent did not
    read before its end."""
    sandbox: str | None = None
    """Where the commands ran: `docker`, or `local`, which isolates nothing."""
