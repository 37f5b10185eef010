"""What an attempt brought."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.jobs.approvals import Approval
from orchestrator.jobs.changes import FileChange
from orchestrator.jobs.failures import JobFailure
from orchestrator.jobs.result import Usage
from orchestrator.jobs.spec import JobSpec
from workers.checkpoint import Checkpoints


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
