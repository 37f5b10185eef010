"""What people read of a failure: what happened, and what to do next. Its class is for programs.

A failure's own message comes first, because it names what it is about; the table has what every
failure of a type has in common. A test requires a row for each failure type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class FailureText(NamedTuple):
    """What people read of the failures of one type."""

    what: str
    """A sentence for a failure without a message of its own."""
    next_step: str
    """A sentence; `{id}` is replaced by the id of the job."""


_REPEAT = "To run it again: fanout retry {id}"
_LOOK = "To see what it did: fanout logs {id}"
_CONTINUE = 'To continue it: fanout run --continue {id} "…"'
_DOCTOR = "To see what is wrong: fanout doctor"
_APPROVALS = "To list the open approvals: fanout approvals"

FAILURE_TEXTS: Mapping[str, FailureText] = {
    "JobFailure": FailureText("The job failed.", _LOOK),
    "InvalidJob": FailureText(
        "The job cannot run as it was specified.", "To see what it asks for: fanout show {id}"
    ),
    "InvalidGraph": FailureText(
        "The jobs cannot run after each other as they say.",
        "To see what a job comes after: fanout show {id}",
    ),
    "UnknownAgent": FailureText("No agent has this name.", "To list the agents: fanout agents"),
    "UnknownJob": FailureText("There is no such job.", "To list the jobs: fanout ps --all"),
    "LimitExceeded": FailureText(
        "The job asks for more than this installation allows.",
        "To see what it allows: fanout config",
    ),
    "ShareUsedUp": FailureText(
        "Your share of the stored jobs is used up.", "To cancel queued jobs: fanout cancel {id}"
    ),
    "CallerBusy": FailureText("Too many of your requests are being worked on.", _REPEAT),
    "UploadTooSlow": FailureText("The upload took too long.", _REPEAT),
    "ChoiceRefused": FailureText(
        "The caller may not choose what the job asks for.",
        "To see what callers may choose: fanout keys ls",
    ),
    "ApprovalRefused": FailureText("The answer to the approval was not accepted.", _APPROVALS),
    "UnknownApproval": FailureText("There is no such approval.", _APPROVALS),
    "InvalidAnswer": FailureText("The answer to the approval cannot be used.", _APPROVALS),
    "DecisionNotAllowed": FailureText(
        "The agent does not allow this decision.",
        "To see which ones it allows: fanout approvals --json",
    ),
    "AnsweredAlready": FailureText(
        "The approval has been answered.", "To see how the job continued: fanout show {id}"
    ),
    "MessagesUnread": FailureText("Messages arrived after the agent had finished.", _CONTINUE),
    "NotUnderstood": FailureText(
        "Another release of fanout wrote this, in a form that this release cannot read.",
        "Install that release, or update all hosts to one.",
    ),
    "LedgerUnavailable": FailureText("Redis does not respond.", _DOCTOR),
    "LedgerFull": FailureText(
        "Redis has too little memory left.",
        "Raise its maxmemory, or keep jobs for a shorter time (FANOUT_RETENTION_SECONDS).",
    ),
    "LedgerMisconfigured": FailureText("Redis cannot be used as it is set up.", _DOCTOR),
    "LedgerForbidden": FailureText(
        "Redis refuses the user or the password.", "Check FANOUT_REDIS_URL: fanout doctor"
    ),
    "LedgerReplaced": FailureText(
        "Redis has lost its data, or holds those of another installation.",
        "Check FANOUT_REDIS_URL, or restore the data.",
    ),
    "NotStarted": FailureText("Redis or the worker could not be started.", _DOCTOR),
    "LeaseLost": FailureText("Another worker took over the job.", _REPEAT),
    "LeaseNotRenewed": FailureText("Redis or the worker did not respond for too long.", _REPEAT),
    "JobCancelled": FailureText("Cancelled.", _REPEAT),
    "NotRun": FailureText(
        "Not run: a job after which it was to run did not succeed.",
        "To run it nevertheless: fanout retry {id}",
    ),
    "DeadlineExceeded": FailureText("The job's time was used up.", _CONTINUE),
    "LimitReached": FailureText("A limit of the job was reached.", _CONTINUE),
    "AgentFailed": FailureText("The agent ended without an answer.", _LOOK),
    "ScriptAborted": FailureText("The script ended with an error.", _LOOK),
    "ScriptIncomplete": FailureText("Calls of the script were not run.", _LOOK),
    "ScriptDiverged": FailureText(
        "The script made other calls when it was run again, so it was stopped.", _LOOK
    ),
    "SetupFailed": FailureText(
        "The set-up of the job's environment failed.",
        "To see its output: fanout show {id}; after a correction: fanout retry {id}",
    ),
    "SetupCutOff": FailureText(
        "A host that the set-up of the job's environment needs did not respond.", _REPEAT
    ),
    "VerificationFailed": FailureText(
        "The answer did not pass the job's verification.", "To see the output: fanout result {id}"
    ),
    "ModelUnavailable": FailureText("The model did not respond.", _REPEAT),
    "ModelClosed": FailureText(
        "The model could not be asked for longer than the job may wait.", _REPEAT
    ),
    "McpServerUnavailable": FailureText("An MCP server of the agent did not respond.", _REPEAT),
    "RemoteAgentUnavailable": FailureText("The remote agent did not respond.", _REPEAT),
    "AttemptsUsedUp": FailureText("The worker was lost in every attempt.", _REPEAT),
    "BlobMissing": FailureText(
        "Files that the job needs are no longer stored.", "Submit the task as a new job."
    ),
    "BlobCorrupt": FailureText(
        "Stored files of the job are damaged.", "Submit the task as a new job."
    ),
    "BlobStoreUnusable": FailureText("The file store cannot be used.", _DOCTOR),
    "ShuttingDown": FailureText("The worker was stopped.", _REPEAT),
    # the sandbox
    "HostFault": FailureText("The host could not run the job.", _DOCTOR),
    "SandboxFailure": FailureText("The sandbox failed.", _REPEAT),
    "OperationFailed": FailureText("An operation in the sandbox failed.", _LOOK),
    "EngineUnavailable": FailureText("The Docker engine does not respond.", _DOCTOR),
    "EngineForbidden": FailureText("This user may not use the Docker engine.", _DOCTOR),
    "EngineUnfit": FailureText("The Docker engine cannot isolate jobs.", _DOCTOR),
    "SandboxDied": FailureText("The sandbox ended unexpectedly.", _REPEAT),
    "SandboxStartFailed": FailureText("The sandbox did not start.", _DOCTOR),
    "SandboxNotSecluded": FailureText(
        "The image or the engine does not isolate the sandbox.",
        "To check the image: fanout images check IMAGE",
    ),
    "ImageMissing": FailureText(
        "The sandbox image is not on the Docker engine.", "To list the images: fanout images ls"
    ),
    "ImageUnfit": FailureText(
        "The image cannot be used for sandboxes.", "To check the image: fanout images check IMAGE"
    ),
    "EnvironmentMissing": FailureText("The job's prepared environment was removed.", _REPEAT),
    "EnvironmentsUnfit": FailureText(
        "The Docker engine cannot have prepared environments.", _DOCTOR
    ),
    "SnapshotUnusable": FailureText(
        "The files that the job starts from are damaged.", "Submit the task as a new job."
    ),
    "DiskLimitExceeded": FailureText("The job wrote more than its disk limit.", _LOOK),
    "FilesMissing": FailureText(
        "The job's files are no longer on this host.", "Submit the task as a new job."
    ),
    "ChangesNotCollected": FailureText("The job's changes could not be collected.", _LOOK),
    "ChangesUnreadable": FailureText("The job's changes could not be read.", _LOOK),
    "NoSandbox": FailureText("No sandbox is available.", _DOCTOR),
    "SandboxNotAllowed": FailureText("This user may not use the Docker engine.", _DOCTOR),
    "ImagesMissing": FailureText("The sandbox images are missing.", "fanout images build"),
    "OtherSandbox": FailureText(
        "The running worker uses another kind of sandbox.", "To stop it: fanout down"
    ),
    # files and merges
    "WorkspaceUnusable": FailureText("The folder cannot be used.", "Choose another folder."),
    "MergeUndone": FailureText("Nothing was merged.", "To merge it: fanout apply {id}"),
    "MergeUnfinished": FailureText(
        "Only a part was merged.", "To merge the rest: fanout apply {id}"
    ),
    "BranchUnusable": FailureText(
        "The branch cannot be used.", "To use another one: fanout apply {id} --branch NAME"
    ),
    "LandedElsewhere": FailureText(
        "The changes were merged elsewhere before.", "To merge them here: fanout apply {id}"
    ),
    "ArchiveRefused": FailureText(
        "The archive cannot be used.", "Send another one, as docs/http.md describes it."
    ),
    "CloneRefused": FailureText(
        "The repository cannot be cloned.", "Check its URL and the access to it."
    ),
    "ServiceFull": FailureText("The service has no room for more uploads.", "Try again later."),
}

_UNKNOWN = FAILURE_TEXTS["JobFailure"]


def what_happened(failure_type: str, message: str) -> str:
    """Return what happened: the failure's own message, else the sentence of its type.

    Args:
        failure_type: The name of its class, which this release need not know.
        message: Its message; it may be empty.
    """
    return message.strip() or FAILURE_TEXTS.get(failure_type, _UNKNOWN).what


def next_step(failure_type: str, job_id: str = "ID") -> str:
    """Return what a person can do about a failure.

    Args:
        failure_type: The name of its class, which this release need not know.
        job_id: The job that failed, in the form in which people read it.
    """
    return FAILURE_TEXTS.get(failure_type, _UNKNOWN).next_step.format(id=job_id)
