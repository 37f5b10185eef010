"""The proofs about outages: they use up no attempt, and no job freezes while Redis is full.

An attempt counts for them when only the outage can have hit it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from tests.chaos.evidence import JobEvidence
from tests.chaos.faults.base import Hit
from tests.chaos.injector import Injected
from tests.chaos.plan import AFTERMATH_SECONDS
from tests.chaos.proofs import OUT_OF_ATTEMPTS

COST_NOTHING = ("redis hangs", "redis full", "engine stays away")
"""The faults that use up no attempt."""
WITHOUT_SANDBOX = ("engine stays away",)
"""Those of them that use up none only before an attempt's sandbox is ready."""

Processes = Sequence[Collection[str]]
"""The names of each worker's processes."""


@dataclass(frozen=True)
class Attempt:
    """One attempt, as its job's journal has it."""

    job: str
    number: int
    worker: str
    began: float
    ended: float
    is_used_up: bool
    had_sandbox: bool


def cost_no_attempt(
    jobs: Mapping[str, JobEvidence], faults: Sequence[Injected], processes: Processes
) -> list[str]:
    """Each attempt that only such an outage met was given back, or came to its end."""
    return [
        f"{attempt.job}: attempt {attempt.number} was used up although only this met it: {fault.kind}"
        for fault in faults
        if fault.kind in COST_NOTHING
        for attempt in met_alone(fault, jobs, faults, processes)
        if attempt.is_used_up and not (fault.kind in WITHOUT_SANDBOX and attempt.had_sandbox)
    ]


def frozen_while_full(
    jobs: Mapping[str, JobEvidence], faults: Sequence[Injected], processes: Processes
) -> list[str]:
    """Of the jobs that run when Redis becomes full, some end or are given back while it is."""
    found = []
    for fault in faults:
        met = met_alone(fault, jobs, faults, processes) if fault.kind == "redis full" else []
        running = [attempt for attempt in met if attempt.began < fault.at]
        if running and all(attempt.ended > fault.healed_at for attempt in running):
            found.append(f"Redis was full, and all {len(running)} jobs that ran then froze")
    return found


def met_alone(
    fault: Injected,
    jobs: Mapping[str, JobEvidence],
    faults: Sequence[Injected],
    processes: Processes,
) -> list[Attempt]:
    """Return the attempts that a fault met, and that no other fault can have hit."""
    others = [other for other in faults if other is not fault]
    return [
        attempt
        for job in jobs.values()
        for attempt in _attempts(job)
        if attempt.began <= fault.healed_at
        and attempt.ended >= fault.at
        and not any(_may_hit(other, attempt, processes) for other in others)
    ]


def _may_hit(fault: Injected, attempt: Attempt, processes: Processes) -> bool:
    over = fault.healed_at + AFTERMATH_SECONDS
    if attempt.began > over or attempt.ended < fault.at:
        return False
    hit = fault.hit
    if hit.everybody or hit == Hit():  # what hits no process, hits what all use
        return True
    of_worker = next((names for names in processes if attempt.worker in names), ())
    return attempt.job in hit.jobs or any(name in of_worker for name in hit.workers)


def _attempts(job: JobEvidence) -> Iterator[Attempt]:
    begun: JournalEvent | None = None
    had_sandbox = False
    for event in job.events:
        had_sandbox |= event.type is EventType.SANDBOX_READY
        if event.type is not EventType.JOB_STATE:
            continue
        if begun is not None:
            yield Attempt(
                job=job.id,
                number=begun.attempt,
                worker=str(begun.data.get("worker")),
                began=begun.at,
                ended=event.at,
                is_used_up=_is_used_up(job, begun, event),
                had_sandbox=had_sandbox,
            )
        begun = event if event.data["state"] == "running" else None
        had_sandbox = False


def _is_used_up(job: JobEvidence, begun: JournalEvent, event: JournalEvent) -> bool:
    """Return whether an attempt ended as a lost or failed one."""
    if event.data["state"] == "queued":
        return event.attempt == begun.attempt
    error = job.result.error if job.result else None
    return event.data["state"] == "failed" and (
        error is not None and (error.retryable or error.type == OUT_OF_ATTEMPTS)
    )
