"""All failures of a job.

    JobFailure
    ├── InvalidJob            the job cannot run as specified; a repetition fails too
    │   ├── UnknownAgent      no agent definition has that name
    │   ├── UnknownJob        the ledger has no job with that id
    │   ├── LimitExceeded     it asks for more than the installation gives a job
    │   ├── ShareUsedUp       its owner or tenant has all the jobs that may be stored
    │   ├── ChoiceRefused     its caller may not choose this
    │   └── ApprovalRefused   the answer to an approval was rejected
    │       ├── UnknownApproval     no approval with that id is open
    │       ├── InvalidAnswer       the answer is incomplete or too long
    │       ├── DecisionNotAllowed  the agent's policy does not offer that decision
    │       └── AnsweredAlready     the approval has an answer, or its job has ended
    ├── MessagesUnread        a result does not account for all messages to its job
    ├── NotUnderstood         written by another release, in a form unknown to this one
    ├── LedgerUnavailable     Redis does not respond                                  retryable
    │   ├── LedgerFull        Redis has no memory for another record                  retryable
    │   ├── LedgerMisconfigured   Redis cannot be used as it is set up
    │   │   └── LedgerForbidden   Redis does not accept the password, or the user's rights
    │   └── LedgerReplaced    Redis has another installation's records, or lost its own
    ├── LeaseLost             another attempt may run: this one stops at once         retryable
    │   └── LeaseNotRenewed   Redis did not respond, or this worker was stopped       retryable
    ├── JobCancelled          the job was cancelled
    ├── DeadlineExceeded      the job's time is used up
    ├── LimitReached          a budget or a resource limit ended the job in order
    ├── AgentFailed           the agent ended without an answer
    ├── ScriptAborted         the job's script ended with an error
    │   ├── ScriptIncomplete  it ended, and calls that it asked for were not run
    │   └── ScriptDiverged    run again, it made other calls than before
    ├── SetupFailed           the set-up of its environment failed; a repetition fails too
    │   └── SetupCutOff       its set-up lost a host of its network               retryable
    ├── VerificationFailed    its answers did not pass the job's verification
    ├── ModelUnavailable      the model's service did not respond, after all retries  retryable
    ├── ModelClosed           a model may not be asked for longer than the job may wait
    ├── McpServerUnavailable  an MCP server of the agent was not reached              retryable
    ├── RemoteAgentUnavailable  the agent of another service was not reached          retryable
    ├── AttemptsUsedUp        every attempt was lost before it ended
    ├── BlobMissing           a snapshot or a bundle is not in the blob store
    │   └── BlobCorrupt       its content is not the one that was stored
    └── SandboxFailure        the sandbox failed, not the command in it; see `workers/sandbox`

`retryable` is an attribute of the class: the next attempt may succeed where this one failed.
"""

from __future__ import annotations

from typing import ClassVar

from .result import JobError


class JobFailure(Exception):
    """The root of the tree above; its text is one sentence that says what to do about it."""

    retryable: ClassVar[bool] = False
    depends_on_host: ClassVar[bool] = False
    """Whether another host, or this one later, may open the sandbox that could not be opened."""

    def as_error(self) -> JobError:
        """Return this failure as data for a result."""
        return JobError(type=type(self).__name__, message=str(self), retryable=self.retryable)


class InvalidJob(JobFailure):
    """The job cannot run as specified."""


class MessagesUnread(JobFailure):
    """A job's result does not account for all messages that were sent to the job."""


class UnknownAgent(InvalidJob):
    """No agent definition has that name."""


class UnknownJob(InvalidJob):
    """The ledger has no job with that id."""


class LimitExceeded(InvalidJob):
    """A limit of the job is above the installation's ceiling, or names a host that none may reach.

    The text names the limit, the value and the ceiling.
    """


class ShareUsedUp(InvalidJob):
    """The job's owner, or its tenant, has as many jobs or bytes stored as it may have.

    The text names whose limit it is, its value and its setting.
    """


class ChoiceRefused(InvalidJob):
    """A model, a command, a host or a limit that the job's caller may not choose.

    The text says what the caller may choose instead, and who can permit it.
    """


class ApprovalRefused(InvalidJob):
    """The answer to an approval was rejected; nothing has changed."""


class UnknownApproval(ApprovalRefused):
    """No approval with that id is open."""


class InvalidAnswer(ApprovalRefused):
    """The answer is incomplete or too long."""


class DecisionNotAllowed(ApprovalRefused):
    """The decision is not one of those that the agent's policy offers."""


class AnsweredAlready(ApprovalRefused):
    """The approval is no longer open."""


class NotUnderstood(JobFailure):
    """Another release of fanout wrote the data, in a form that this one does not know."""


class LedgerUnavailable(JobFailure):
    """Redis does not respond."""

    retryable = True


class LedgerFull(LedgerUnavailable):
    """Redis has no memory for another record, or keeps what is left for the jobs that run.

    It has rejected the operation and changed nothing.
    """


class LedgerMisconfigured(LedgerUnavailable):
    """Redis cannot be used as it is set up; a repetition fails too."""

    retryable = False


class LedgerForbidden(LedgerMisconfigured):
    """Redis does not accept the password, or its user may not do this."""


class LedgerReplaced(LedgerUnavailable):
    """Redis responds, with records that are not those of the worker's installation.

    It was flushed or restored, or a replica without data took over: what it says of a job is no
    reason to remove anything.
    """


class LeaseLost(JobFailure):
    """The attempt no longer holds the job: the ledger rejects everything that it does."""

    retryable = True


class LeaseNotRenewed(LeaseLost):
    """The lease was not renewed in time. The ledger may not have noticed: the job is given back."""


class JobCancelled(JobFailure):
    """The job was cancelled."""


class NotRun(JobFailure):
    """A job after which this one was to run did not succeed."""


class DeadlineExceeded(JobFailure):
    """The job's wall-clock limit is used up."""


def out_of_time(timeout_seconds: float) -> DeadlineExceeded:
    """Return the failure of a job whose time is used up.

    Args:
        timeout_seconds: The job's limit.
    """
    return DeadlineExceeded(
        f"The job's time limit of {timeout_seconds:g} s is used up (limits.timeout_seconds)."
    )


class LimitReached(JobFailure):
    """A budget or resource limit ended the job; the message names the limit and its value."""


class AgentFailed(JobFailure):
    """The agent ended without an answer, or with one that does not match its schema."""


class ScriptAborted(JobFailure):
    """The job's script ended with an error; the text has its line."""


class ScriptIncomplete(ScriptAborted):
    """The job's script ended, and calls that it asked for were not run."""


class ScriptDiverged(ScriptAborted):
    """The job's script was run again, and made other calls than before; nothing was submitted."""


class SetupFailed(JobFailure):
    """The set-up of the job's environment failed; the text ends with its output."""


class SetupCutOff(SetupFailed):
    """A command of the set-up failed, and a host that it may reach did not answer."""

    retryable = True


class VerificationFailed(JobFailure):
    """The job's `verify` command still failed after the agent's last rework."""


class ModelUnavailable(JobFailure):
    """The model's service did not respond, after all retries."""

    retryable = True


class ModelClosed(JobFailure):
    """The job's models have no quota, or are away, for longer than the job may wait."""


def model_wait_over(what: str) -> ModelClosed:
    """Return the failure of a job that may not wait for its model any longer.

    Args:
        what: What it waits for.
    """
    return ModelClosed(f"The job may not wait any longer (limits.max_wait_seconds) for {what}.")


class McpServerUnavailable(JobFailure):
    """An MCP server of the agent was not reached, or did not respond in time."""

    retryable = True


class RemoteAgentUnavailable(JobFailure):
    """The remote agent was not reached, or did not respond in time."""

    retryable = True


class AttemptsUsedUp(JobFailure):
    """The worker of every attempt was lost before it could end the job."""


class BlobMissing(JobFailure):
    """A blob that the job names is not in the store."""


class BlobCorrupt(BlobMissing):
    """A blob's content does not match its id: it was damaged or changed in the store."""


class SandboxFailure(JobFailure):
    """The sandbox failed, not the command in it; its subclasses are in `workers.sandbox.errors`."""
