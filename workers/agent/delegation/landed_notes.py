"""What became of a task's changes, and why: for the journal, and for the agent of the task."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

from fanout.orchestrator.deep_agent import CHANGES_BREAK, CHANGES_CONFLICT
from fanout.orchestrator.landing.train import Outcome, Train
from fanout.orchestrator.workspace.merge_report import MergeReport

SHOWN_CONFLICTS = 50
"""Of one landing, in the journal and in a message: as many as one reads before beginning."""

NAMED_PATHS = 3
"""In one sentence; the list of conflicts has the others."""

Landed = dict[str, JsonValue]
"""The data of a `child.landed`: `outcome` (in, out, sent back), and where they apply `applied` (a
number), `conflicts` (path, reason), `reason`, `verification` and `rework` (the id of a job)."""


def merge_notes(report: MergeReport) -> Landed:
    """Return the entries of a `child.landed` about a merge."""
    return {"applied": len(report.applied), "conflicts": _conflicts(report)}


def outcome_notes(outcome: Outcome[MergeReport], report: MergeReport) -> Landed:
    """Return the entries about the outcome of a train, all but `outcome` itself."""
    if outcome.is_in:
        return merge_notes(report)
    notes: Landed = {"applied": 0, "reason": _reason(outcome)}
    if outcome.conflicts is not None:
        notes["conflicts"] = _conflicts(outcome.conflicts)
    elif outcome.verification is not None:
        notes["verification"] = outcome.verification.model_dump()
    return notes


def doubts(train: Train[MergeReport]) -> str:
    """Return what is to be said about the verification of a train; empty: nothing."""
    if train.failed_before is not None:
        return (
            "The verification fails without the changes too (exit code "
            f"{train.failed_before.exit_code}), so it says nothing about them."
        )
    if train.is_flaky:
        return "The verification is flaky: it gave two answers about the same files."
    return ""


def message(landed: Landed) -> str:
    """Return what the agent of a task that is sent back is told."""
    verification = landed.get("verification")
    if isinstance(verification, Mapping):
        return CHANGES_BREAK.format(**verification)
    lines = [f"- {one['path']}: {one['reason']}" for one in conflicts_of(landed)]
    return CHANGES_CONFLICT.format(conflicts="\n".join(lines))


def conflicts_of(landed: Landed) -> list[Mapping[str, JsonValue]]:
    """Return the conflicts of a `child.landed`: `path` and `reason` of each."""
    conflicts = landed.get("conflicts")
    found = conflicts if isinstance(conflicts, list) else []
    return [one for one in found if isinstance(one, Mapping)]


def _reason(outcome: Outcome[MergeReport]) -> str:
    if outcome.conflicts is not None:
        paths = [one.path for one in outcome.conflicts.conflicts]
        named, left = ", ".join(paths[:NAMED_PATHS]), len(paths) - NAMED_PATHS
        more = f" and {left} more" if left > 0 else ""
        return f"It conflicts with what the files have: {named}{more}."
    code = outcome.verification.exit_code if outcome.verification else 1
    return f"With it the files fail the verification (exit code {code})."


def _conflicts(report: MergeReport) -> JsonValue:
    shown = report.conflicts[:SHOWN_CONFLICTS]
    return [{"path": one.path, "reason": one.reason} for one in shown]
