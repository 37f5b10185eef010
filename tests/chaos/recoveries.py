"""How long jobs that a fault hit took to be at work again, from their journals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from tests.chaos.evidence import JobEvidence
from tests.chaos.injector import Injected
from tests.chaos.plan import AFTERMATH_SECONDS


@dataclass(frozen=True)
class Recovery:
    """One attempt that a fault ended, until the job was at work again."""

    kind: str
    job: str
    seconds: float
    alone: bool
    """Whether no other fault happened meanwhile."""


@dataclass(frozen=True)
class _Run:
    """One attempt at work."""

    job: str
    worker: str
    began: float
    ended: float
    again: float | None
    """When the job was next at work; None when this attempt brought it to its end, or to wait."""


def recoveries(faults: Sequence[Injected], jobs: Mapping[str, JobEvidence]) -> list[Recovery]:
    """Each attempt that a fault hit and ended, with the first fault that did."""
    runs = [run for job in jobs.values() for run in _runs(job)]
    found = []
    for run in runs:
        hits = [
            fault for fault in faults if run.began <= fault.at <= run.ended and _is_hit(fault, run)
        ]
        if run.again is not None and hits:
            first = hits[0]
            others = [
                other
                for other in faults
                if other is not first and _meets(other, first.at, run.again)
            ]
            found.append(Recovery(first.kind, run.job, run.again - first.at, alone=not others))
    return found


def _is_hit(fault: Injected, run: _Run) -> bool:
    return fault.hit.everybody or run.worker in fault.hit.workers or run.job in fault.hit.jobs


def _meets(fault: Injected, begin: float, end: float) -> bool:
    return fault.at <= end and (fault.healed_at or fault.at) + AFTERMATH_SECONDS >= begin


def _runs(job: JobEvidence) -> list[_Run]:
    states = [event for event in job.events if event.type is EventType.JOB_STATE]
    return [
        _Run(job.id, str(state.data.get("worker")), state.at, *_after(states[place + 1 :], state))
        for place, state in enumerate(states)
        if state.data["state"] == "running"
    ]


def _after(later: Sequence[JournalEvent], state: JournalEvent) -> tuple[float, float | None]:
    """When an attempt ended, and when the job was at work again if it was only queued."""
    if not later:
        return state.at, None
    again = next((event.at for event in later if event.data["state"] == "running"), None)
    return later[0].at, again if later[0].data["state"] == "queued" else None


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that this share of them does not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
