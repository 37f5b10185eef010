"""What an attempt brought, and the result that it becomes."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.jobs.approvals import Approval
from orchestrator.jobs.changes import FileChange
from orchestrator.jobs.failures import AgentFailed, DeadlineExceeded, JobCancelled, JobFailure
from orchestrator.jobs.result import JobResult, Usage
from orchestrator.jobs.spec import JobSpec
from orchestrator.jobs.state import JobState
from orchestrator.jobs.store.ledger import Claim
from workers.agent.checkpoint import Checkpoints


@dataclass
class Outcome:
    """What an attempt brought, filled in as it goes on; whatever ends it, this is reported."""

    summary: str = ""
    output: object = None
    usage: Usage = field(default_factory=Usage)
    files: tuple[FileChange, ...] = ()
    changes: str | None = None
    sandbox: str | None = None
    approvals: tuple[Approval, ...] = ()
    children: tuple[JobSpec, ...] | None = None
    """What the agent waits for, None for no children: the attempt is over, the job is not."""
    timeout_seconds: float | None = None
    """The job's limit: its time runs on while it waits for children."""
    messages_read: int = 0
    checkpoints: Checkpoints | None = None
    """None where there was no sandbox."""
    failure: JobFailure | None = None

    @property
    def waits(self) -> bool:
        """Whether the job is to be parked."""
        return bool(self.approvals) or self.children is not None


def result_of(claim: Claim, outcome: Outcome, ran_seconds: float) -> JobResult:
    """A result that can be stored.

    An answer that is not Unicode is dropped, and that is the failure.
    """
    try:
        result = _whole_result(claim, outcome, ran_seconds)
        result.model_dump_json()
    except ValueError:
        kept = Outcome(usage=outcome.usage, sandbox=outcome.sandbox, failure=outcome.failure)
        kept.failure = kept.failure or AgentFailed(
            "The agent's answer is not valid Unicode; it was dropped."
        )
        return _whole_result(claim, kept, ran_seconds)
    return result


def _whole_result(claim: Claim, outcome: Outcome, ran_seconds: float) -> JobResult:
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
            "output": outcome.output,
            "files_modified": outcome.files,
            "changes": outcome.changes,
            "usage": outcome.usage,
            "attempts": claim.attempt,
            "queued_seconds": round(max(claim.started_at - claim.submitted_at, 0), 3),
            "execution_seconds": round(claim.ran_seconds + ran_seconds, 3),
            "error": failure.as_error() if failure else None,
            "sandbox": outcome.sandbox,
        },
    )
