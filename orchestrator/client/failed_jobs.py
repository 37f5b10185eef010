"""The jobs below a run's root that failed, and whether a later job replaced them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fanout.orchestrator.client.job_reader import JobReader
from fanout.orchestrator.jobs.state import JobRecord, JobState

FAILURES = {JobState.FAILED, JobState.TIMED_OUT}
"""The states of failed jobs of a run; cancelled jobs were ended on purpose."""


@dataclass(frozen=True)
class FailedJob:
    """A job of a run, other than its root, that did not succeed."""

    job_id: str
    agent: str
    state: str
    reason: str
    done_again: bool = False
    """Whether a later job succeeded at the same task, or at that of a job above it."""


async def failed_jobs(reader: JobReader, root_id: str) -> tuple[FailedJob, ...]:
    """Return the jobs below a root job that did not succeed, and why."""
    records = [record for record in await reader.tree(root_id) if record.id != root_id]
    done_again = done_again_ids(records)
    return tuple(
        FailedJob(
            record.id, record.agent, record.state, record.reason or "", record.id in done_again
        )
        for record in records
        if record.state in FAILURES
    )


def done_again_ids(records: Sequence[JobRecord]) -> set[str]:
    """Return the failed jobs that a later one replaced, and those below them.

    A replacement has the same parent, and continues the failed job, or its description is or
    contains the failed job's; each replaces one job.

    Args:
        records: The jobs of a tree, parents before children.
    """
    done_again: set[str] = set()
    used: set[str] = set()
    for failed in records:
        if failed.state not in FAILURES:
            continue
        if failed.parent_id in done_again:
            done_again.add(failed.id)
            continue
        later = (one for one in records if one.id not in used and _replaces(one, failed))
        if (success := next(later, None)) is not None:
            done_again.add(failed.id)
            used.add(success.id)
    return done_again


def _replaces(other: JobRecord, failed: JobRecord) -> bool:
    if other.state is not JobState.SUCCEEDED or other.parent_id != failed.parent_id:
        return False
    is_repeated = _words(failed.description) in _words(other.description)
    is_later = other.submitted_at >= (failed.finished_at or failed.submitted_at)
    return other.continues == failed.id or (is_repeated and is_later)


def _words(text: str) -> str:
    return " ".join(text.casefold().split())
