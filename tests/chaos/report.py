"""What a run says at its end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fanout.orchestrator.jobs.store.journal import EventType
from tests.chaos.evidence import JobEvidence
from tests.chaos.injector import Injected
from tests.chaos.recoveries import Recovery, percentile

MOST_SHOWN = 20
"""Violations of one proof that are printed; all of them are in the JSON."""


@dataclass
class Report:
    """A run, its figures and its proofs."""

    seed: int
    minutes: float
    seconds: float
    jobs: Mapping[str, JobEvidence]
    faults: Sequence[Injected]
    skipped: int
    left_out: Sequence[str]
    violations: Mapping[str, list[str]]
    recoveries: Sequence[Recovery]
    met_alone: Mapping[str, int]
    """Kind of outage -> the attempts that the first one met, and no other fault can have hit."""

    @property
    def passed(self) -> bool:
        """Whether every proof holds, of jobs that there were."""
        return bool(self.jobs) and not any(self.violations.values())

    def as_json(self) -> str:
        """One document."""
        return json.dumps(self.figures() | {"violations": self.violations, "passed": self.passed})

    def figures(self) -> dict[str, Any]:
        """All that was counted and measured."""
        attempts = [
            event.data
            for job in self.jobs.values()
            for event in job.events
            if event.type is EventType.SANDBOX_READY
        ]
        again = len(attempts) - sum(_has_begun(job) for job in self.jobs.values())
        resumed = sum(bool(data.get("resumed")) for data in attempts)
        return {
            "seed": self.seed,
            "minutes": self.minutes,
            "seconds": round(self.seconds, 1),
            "jobs": len(self.jobs),
            "jobs_by_kind": dict(Counter(job.kind or "child" for job in self.jobs.values())),
            "jobs_by_state": dict(Counter(str(job.record.state) for job in self.jobs.values())),
            "faults": len(self.faults),
            "faults_by_kind": dict(Counter(fault.kind for fault in self.faults)),
            "faults_without_target": self.skipped,
            "left_out": list(self.left_out),
            "sandboxes": len(attempts),
            "met_alone": dict(self.met_alone),
            "resumed": resumed,
            "restarted": again - resumed,
            "recoveries": {
                kind: self._recovery(kind) for kind in sorted({one.kind for one in self.recoveries})
            },
        }

    def _recovery(self, kind: str) -> dict[str, Any]:
        every = [one.seconds for one in self.recoveries if one.kind == kind]
        alone = [one.seconds for one in self.recoveries if one.kind == kind and one.alone]
        return {"all": _spread(every), "alone": _spread(alone)}

    def in_words(self) -> str:
        """For a person; the last lines say how it went."""
        figures = self.figures()
        lines = [
            f"jobs        {figures['jobs']}  ({_counted(figures['jobs_by_kind'])})",
            f"ended       {_counted(figures['jobs_by_state'])}",
            f"faults      {figures['faults']}  ({_counted(figures['faults_by_kind'])})",
            f"sandboxes   {figures['sandboxes']}",
            f"again       {figures['resumed']} resumed, {figures['restarted']} restarted",
            f"alone       attempts that met only this: {_counted(figures['met_alone'])}",
            "recoveries  seconds from a fault until the job was at work again; p50 / p95 / max",
        ]
        for kind, spread in figures["recoveries"].items():
            lines.append(
                f"  {kind:20} {_seconds(spread['all'])}   no other fault: {_seconds(spread['alone'])}"
            )
        lines += [f"left out    {what}" for what in self.left_out]
        for proof, violations in self.violations.items():
            lines.append(f"{'holds' if not violations else 'VIOLATED':11} {proof}")
            lines += [f"            {violation}" for violation in violations[:MOST_SHOWN]]
            if len(violations) > MOST_SHOWN:
                lines.append(f"            and {len(violations) - MOST_SHOWN} more")
        verdict = "PASS" if self.passed else "FAIL"
        replay = f"python -m tests.chaos --minutes {self.minutes:g} --seed {self.seed}"
        return "\n".join(
            [*lines, f"{verdict} in {self.seconds:.0f} s; the same plan again: {replay}"]
        )


def _has_begun(job: JobEvidence) -> bool:
    return any(event.type is EventType.SANDBOX_READY for event in job.events)


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    return {
        "count": len(seconds),
        "p50": round(percentile(seconds, 0.5), 2),
        "p95": round(percentile(seconds, 0.95), 2),
        "max": round(max(seconds, default=0.0), 2),
    }


def _seconds(spread: Mapping[str, float]) -> str:
    return f"{spread['count']:4.0f} x {spread['p50']:5.1f} / {spread['p95']:5.1f} / {spread['max']:5.1f}"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
