"""What became of each job in a merge: for people on stderr, and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from fanout.orchestrator.cli.terminal import held_back, output
from fanout.orchestrator.cli.terminal.formatting import short_id
from fanout.orchestrator.jobs.changes import ChangeKind
from fanout.orchestrator.shortening import count
from fanout.orchestrator.workspace.merge_report import MergeReport
from fanout.orchestrator.workspace.three_way import How


class Outcome(StrEnum):
    """What became of a job's changes."""

    MERGED = "merged"
    NOTHING = "nothing to do"
    """It changed nothing, or all of it is there already."""
    CONFLICTS = "conflicts"
    INCOMPLETE = "incomplete"
    """Some changes were held back, refused or could not be written."""
    FAILED = "failed"
    """Its changes could not be read, or the folder not be written."""
    LEFT_OUT = "left out"
    """It did not succeed, or comes after one that could not be written."""


@dataclass(frozen=True)
class JobMerge:
    """What became of one job."""

    job_id: str
    report: MergeReport = field(default_factory=MergeReport)
    reason: str = ""
    """Why there is no report."""
    left_out: bool = False

    @property
    def outcome(self) -> Outcome:
        """What became of its changes."""
        if self.left_out:
            return Outcome.LEFT_OUT
        if self.reason:
            return Outcome.FAILED
        if self.report.conflicts:
            return Outcome.CONFLICTS
        if not self.report.complete:
            return Outcome.INCOMPLETE
        is_there = all(file.how == ALREADY for file in self.report.applied)
        return Outcome.NOTHING if is_there else Outcome.MERGED

    @property
    def complete(self) -> bool:
        """Whether nothing of it is left to a person."""
        return self.left_out or self.outcome in {Outcome.MERGED, Outcome.NOTHING}

    def document(self) -> dict[str, Any]:
        """Return it as a JSON document: a merge report with the job and its outcome."""
        report = self.report.model_dump(mode="json")
        ids = {"id": self.job_id, "job_id": self.job_id}
        hidden = list(self.report.unknown_hidden)
        return {**ids, "outcome": self.outcome, "reason": self.reason, **report, "hidden": hidden}

    def line(self) -> str:
        """Return it as a line."""
        report = self.report
        parts = {
            "merged": report.applied,
            "in conflict": report.conflicts,
            "held back": report.held_back,
            "refused": report.refused,
            "failed": report.failed,
            "skipped": report.skipped,
        }
        counts = [f"{count(len(some), 'file')} {what}" for what, some in parts.items() if some]
        if self.outcome is Outcome.NOTHING:
            why = "all of it is there already" if report.applied else "it changed nothing"
        else:
            only_merged = self.outcome is Outcome.MERGED and len(counts) == 1
            why = self.reason or ", ".join(counts).removesuffix(" merged" if only_merged else "")
        return f"{short_id(self.job_id)}  {self.outcome}: {why}"


ALREADY: How = "already"


def totals(merges: Sequence[JobMerge]) -> str:
    """Return how many jobs had which outcome, as a line."""
    counts = Counter(merge.outcome for merge in merges)
    told = ", ".join(
        f"{counts[outcome]} {'with ' * (outcome is Outcome.CONFLICTS)}{outcome}"
        for outcome in Outcome
        if counts[outcome]
    )
    return f"{count(len(merges), 'job')}: {told}." if merges else "No job changed anything."


def print_report(report: MergeReport, kept: Path | None = None) -> None:
    """Print the merged changes on stdout and those that were not merged on stderr.

    Args:
        report: The report.
        kept: Where both sides of conflicts lie.
    """
    for merged in report.applied:
        what = "already there" if merged.how == ALREADY else "merged"
        kind = "" if merged.change == ChangeKind.MODIFIED else f" ({merged.change})"
        output.payload(f"{what}  {output.one_line(merged.path)}{kind}")
    for conflict in report.conflicts:
        output.notice(
            f"conflict  {output.one_line(conflict.path)}: {output.one_line(conflict.reason)}"
        )
    if report.conflicts and kept:
        output.notice(f"Both sides of what conflicts are in {kept}")
    for kind, left in (
        ("refused", report.refused),
        ("failed", report.failed),
        ("skipped", report.skipped),
    ):
        for entry in left:
            output.notice(
                f"{kind:<8}  {output.one_line(entry.path)}: {output.one_line(entry.reason)}"
            )
    for line in held_back.hidden_lines(report.unknown_hidden):
        output.notice(line)
    for line in held_back.lines(report.held_back):
        output.notice(line)
    if report.held_back:
        output.notice(f"What is held back lands with {held_back.OPTION}.")
