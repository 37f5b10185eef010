"""What a hook, or a message, is told of a job."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from fanout.orchestrator.jobs.failures import NotUnderstood
from fanout.orchestrator.jobs.result import JobResult, Usage
from fanout.orchestrator.jobs.state import JobRecord, JobState

_UNUSUAL = re.compile(r"[^A-Za-z0-9_.:-]")


class JobsToRead(Protocol):
    """What a message says about a job is read here."""

    async def get(self, job_id: str) -> JobRecord:
        """Return a job's record, or raise UnknownJob."""

    async def result(self, job_id: str) -> JobResult | None:
        """Return a job's result, None until it has ended."""

    async def usage(self, job_id: str) -> Usage:
        """Return what a job and those below it have used."""


@dataclass(frozen=True)
class HookEvent:
    """What a hook is told."""

    event: str
    """`finished` or `approval`."""
    job_id: str
    root_id: str
    agent: str
    state: str
    reason: str = ""
    """The type of the failure."""

    def variables(self) -> dict[str, str]:
        """Return the variables of the command: of letters, digits and `_.:-` only."""
        fields = {
            "EVENT": self.event,
            "ID": self.job_id,
            "ROOT_ID": self.root_id,
            "AGENT": self.agent,
            "STATE": self.state,
            "REASON": self.reason,
        }
        return {f"FANOUT_JOB_{name}": _UNUSUAL.sub("_", text) for name, text in fields.items()}


async def end_of(jobs: JobsToRead, job_id: str, state: str) -> HookEvent:
    """Return what a hook is told of a job that has ended.

    Args:
        jobs: Where jobs are read.
        job_id: The job.
        state: The state that it has reached.

    Raises:
        UnknownJob: It does not exist any more.
    """
    record = await jobs.get(job_id)
    try:
        result = await jobs.result(job_id)
    except NotUnderstood:  # of another release
        result = None
    reason = result.error.type if result and result.error else ""
    return HookEvent("finished", job_id, record.root_id, record.agent, state, reason)


async def wait_of(jobs: JobsToRead, job_id: str) -> HookEvent:
    """Return what a hook is told of a job that waits for a person.

    Raises:
        UnknownJob: It does not exist any more.
    """
    record = await jobs.get(job_id)
    waiting = JobState.WAITING.value
    return HookEvent("approval", job_id, record.root_id, record.agent, waiting)
