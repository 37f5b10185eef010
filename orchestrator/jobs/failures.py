"""Every failure of a job, drawn once.

    JobFailure
    ├── InvalidJob            the job cannot run as asked; asking again does not help
    │   ├── UnknownAgent      no definition of that name
    │   ├── UnknownJob        no such id in the ledger
    │   └── ApprovalRefused   the answer to an approval was not taken
    │       ├── UnknownApproval     no approval of that id waits
    │       ├── InvalidAnswer       it is not whole, or too long
    │       ├── DecisionNotAllowed  the agent's policy does not offer that decision
    │       └── AnsweredAlready     somebody was faster, or the job has ended
    ├── NotUnderstood         another release wrote it: one that knows it is needed
    ├── LedgerUnavailable     Redis does not answer                                   retryable
    ├── LeaseLost             another attempt may run: this one stops at once         retryable
    ├── JobCancelled          someone asked for the end
    ├── DeadlineExceeded      the job's time is used up
    ├── LimitReached          a budget or a resource limit ended the job in order
    ├── AgentFailed           the agent ended without an answer
    ├── ModelUnavailable      the model's service did not answer, after all retries   retryable
    ├── McpServerUnavailable  an MCP server of the agent was not reached                  retryable
    ├── AttemptsUsedUp        every attempt died before it ended
    ├── BlobMissing           a snapshot or a bundle is not in the blob store
    └── SandboxFailure        the sandbox failed, not the command in it               see there

`retryable` is an attribute of the class: the next attempt may succeed where this one failed.
"""

from __future__ import annotations

from typing import ClassVar

from orchestrator.jobs.result import JobError


class JobFailure(Exception):
    """The root of the tree above; its text is one sentence that says what to do."""

    retryable: ClassVar[bool] = False

    def as_error(self) -> JobError:
        """This failure as it crosses the wire."""
        return JobError(type=type(self).__name__, message=str(self), retryable=self.retryable)


class InvalidJob(JobFailure):
    """The job cannot run as asked."""


class MessagesUnread(JobFailure):
    """A job's result does not know of all messages that were sent to the job."""


class UnknownAgent(InvalidJob):
    """No agent definition has that name."""


class UnknownJob(InvalidJob):
    """The ledger has no job of that id."""


class ApprovalRefused(InvalidJob):
    """The answer to an approval was not taken; nothing has changed."""


class UnknownApproval(ApprovalRefused):
    """No approval waits under that id."""


class InvalidAnswer(ApprovalRefused):
    """The answer is not whole, or too long."""


class DecisionNotAllowed(ApprovalRefused):
    """The decision is not one of those that the agent's policy offers."""


class AnsweredAlready(ApprovalRefused):
    """The approval waits no longer."""


class NotUnderstood(JobFailure):
    """Another release of fanout wrote it, in a form that this one does not know."""


class LedgerUnavailable(JobFailure):
    """Redis does not answer."""

    retryable = True


class LeaseLost(JobFailure):
    """The attempt's lease lapsed or was taken: nothing that it does from here on counts."""

    retryable = True


class JobCancelled(JobFailure):
    """Someone cancelled the job."""


class DeadlineExceeded(JobFailure):
    """The job's wall-clock limit is used up."""


def out_of_time(timeout_seconds: float) -> DeadlineExceeded:
    """The failure of a job whose time is over, wherever it is noticed."""
    return DeadlineExceeded(
        f"The job's {timeout_seconds:g} seconds are used up; limits.timeout_seconds gives more."
    )


class LimitReached(JobFailure):
    """A budget or resource limit ended the job; the message names the limit and how much it was."""


class AgentFailed(JobFailure):
    """The agent ended without an answer, or with one that does not fit its schema."""


class ModelUnavailable(JobFailure):
    """The model's service did not answer, after all retries."""

    retryable = True


class McpServerUnavailable(JobFailure):
    """An MCP server of the agent was not reached, or did not answer in time."""

    retryable = True


class AttemptsUsedUp(JobFailure):
    """Every attempt died before it could end the job."""


class BlobMissing(JobFailure):
    """A blob that the job names is not in the store."""


class SandboxFailure(JobFailure):
    """The sandbox failed, not the command in it; subclasses live beside the sandboxes."""
