"""The outcome of an attempt, the job's result made of it, and the commit of that result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import structlog
from pydantic import JsonValue

from fanout.orchestrator.jobs.approvals import Approval
from fanout.orchestrator.jobs.bounds import MAX_OUTPUT_BYTES, json_bytes
from fanout.orchestrator.jobs.changes import FileChange
from fanout.orchestrator.jobs.failures import (
    AgentFailed,
    DeadlineExceeded,
    JobCancelled,
    JobFailure,
    MessagesUnread,
)
from fanout.orchestrator.jobs.result import (
    CollectedChanges,
    CollectionState,
    ContextStats,
    JobResult,
    ResultSoFar,
    Usage,
    Verification,
)
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import Journal
from fanout.orchestrator.jobs.store.ledger import Claim, Ledger
from fanout.workers.agent.delegation.children import AwaitedTasks

log = structlog.get_logger(__name__)

UNREAD_CHARACTERS = 200
"""The length of an unread message in a result: enough for its sender to recognize it."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an attempt produced, whether it succeeded, failed or has to be resumed."""

    has_run: bool = False
    """Whether the agent was at work; otherwise the job ends with what its last checkpoint has."""
    has_sandbox: bool = False
    """Whether the attempt's sandbox was opened."""
    leaves_files: bool = True
    """Whether this host may have files of the job."""
    summary: str = ""
    output: JsonValue = None
    verified: Verification | None = None
    usage: Usage = field(default_factory=Usage)
    context: ContextStats = field(default_factory=ContextStats)
    files: tuple[FileChange, ...] = ()
    files_omitted: int = 0
    """The number of further changed files, which only the bundle lists."""
    changes: str | None = None
    """The blob with the change bundle; None without changes."""
    collection: CollectionState = CollectionState.DONE
    """Whether the changes are collected."""
    sandbox: str | None = None
    """The kind of the sandbox; None when none was opened."""
    approvals: tuple[Approval, ...] = ()
    """The approvals for which the agent waits."""
    tasks: AwaitedTasks | None = None
    """The tasks for which the agent waits; None when no call is deferred."""
    messages_read: int = 0
    """The number of messages to the job that its conversation contains."""
    failure: JobFailure | None = None

    @property
    def waits(self) -> bool:
        """Whether the job has to be parked: the attempt has ended, the job has not."""
        return bool(self.approvals) or self.tasks is not None

    def with_changes(self, found: CollectedChanges | ResultSoFar) -> Outcome:
        """Return the outcome with these changes."""
        return replace(
            self,
            files=found.files_modified,
            files_omitted=found.files_omitted,
            changes=found.changes,
        )


def result_of(claim: Claim, outcome: Outcome, ran_seconds: float) -> JobResult:
    """Return the result of an attempt that ended its job, in a form that can be stored.

    An answer that is too large is dropped, and the job fails.

    Args:
        claim: The attempt.
        outcome: The attempt's outcome.
        ran_seconds: How long the attempt ran.
    """
    size = json_bytes(outcome.output)
    if size > MAX_OUTPUT_BYTES:
        too_large = AgentFailed(
            f"The agent's structured answer has {size:,} bytes, more than {MAX_OUTPUT_BYTES:,}; it "
            "was dropped: have large results written to files."
        )
        outcome = replace(outcome, output=None, failure=outcome.failure or too_large)
    return _result(claim, outcome, ran_seconds)


def _result(claim: Claim, outcome: Outcome, ran_seconds: float) -> JobResult:
    failure = outcome.failure
    state = JobState.SUCCEEDED
    if isinstance(failure, DeadlineExceeded):
        state = JobState.TIMED_OUT
    elif isinstance(failure, JobCancelled):
        state = JobState.CANCELLED
    elif failure is not None:
        state = JobState.FAILED
    return JobResult.model_validate(
        {
            "job_id": claim.spec.id,
            "state": state,
            "success": failure is None,
            "summary": outcome.summary,
            "verified": outcome.verified,
            "output": outcome.output,
            "files_modified": outcome.files,
            "files_omitted": outcome.files_omitted,
            "changes": outcome.changes,
            "collection": outcome.collection,
            "usage": outcome.usage,
            "context": outcome.context,
            "attempts": claim.attempt,
            "queued_seconds": round(max(claim.started_at - claim.submitted_at, 0), 3),
            "execution_seconds": round(claim.ran_seconds + ran_seconds, 3),
            "error": failure.as_error() if failure else None,
            "sandbox": outcome.sandbox,
        },
    )


async def commit(
    ledger: Ledger,
    journal: Journal,
    claim: Claim,
    result: JobResult,
    data: Mapping[str, JsonValue],
    *,
    messages_read: int,
) -> bool:
    """Commit a job's result, with the messages that arrived after the agent last read any.

    Returns whether it was committed: False if the attempt no longer holds the job.

    Args:
        ledger: Where the result is committed.
        journal: Where messages to the job are.
        claim: The attempt.
        result: The job's result, without unread messages.
        data: Is added to the journal's event of the job's end.
        messages_read: The number of messages that the agent has read.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    job_id = claim.spec.id
    unread: list[str] = []
    while True:
        beginnings = tuple(text[:UNREAD_CHARACTERS] for text in unread)
        named = result.model_copy(update={"unread_messages": beginnings})
        try:
            return await ledger.finish(
                job_id, claim.token, named, data, messages_read + len(unread)
            )
        except MessagesUnread:  # seldom: then they are read
            unread = await journal.messages(job_id, messages_read)


def failure_in(error: BaseException) -> JobFailure:
    """Return the failure inside an exception: ADK wraps what a plugin raises.

    An unknown exception is reported by its type only, because its text may hold a prompt or a
    file's content.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, JobFailure):
            return cause
        cause = cause.__cause__ or cause.__context__
    log.error("attempt failed unexpectedly", error=type(error).__name__, exc_info=error)
    return AgentFailed(f"The agent's run failed unexpectedly ({type(error).__name__}).")
