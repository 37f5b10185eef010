"""What became of a task's changes, and why: for the journal, and for the agent of the task."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pydantic import JsonValue

from fanout.orchestrator.deep_agent import CHANGES_BREAK, CHANGES_CONFLICT
from fanout.orchestrator.delegation.answers import merge_entries
from fanout.orchestrator.landing.failing_tests import FailingTest, failing_tests
from fanout.orchestrator.landing.train import Outcome, Train
from fanout.orchestrator.workspace.merge_report import MergeReport

SHOWN_CONFLICTS = 50
"""Of one landing, in the journal and in a message: as many as one reads before beginning."""

SHOWN_PATHS = 200
"""Of the files that a landing merged: as many as a result names itself."""

NAMED = 3
"""Paths or tests in one sentence; the list of conflicts and the verification's output have the
others."""

Landed = dict[str, JsonValue]
"""The data of a `child.landed`: `outcome` (in, out, sent back), and where they apply `applied` (a
number), `paths` (the first of these), `conflicts` (path, reason), `reason`, `verification` and
`rework` (the id of a job)."""


def merge_notes(report: MergeReport) -> Landed:
    """Return the entries of a `child.landed` about a merge, each list with its first entries."""
    listed = merge_entries(report).items()
    first = {name: one[:SHOWN_PATHS] for name, one in listed if isinstance(one, list)}
    return {"applied": len(report.applied), **first, "conflicts": _conflicts(report)}


def outcome_notes(
    outcome: Outcome[MergeReport], report: MergeReport, changed: Sequence[str]
) -> Landed:
    """Return the entries about the outcome of a train, all but `outcome` itself.

    Args:
        outcome: What became of a task's changes.
        report: The report of their last merge.
        changed: The paths that the task changed.
    """
    if outcome.is_in:
        return merge_notes(report)
    notes: Landed = {"applied": 0, "reason": _reason(outcome, changed)}
    if outcome.conflicts is not None:
        notes["conflicts"] = _conflicts(outcome.conflicts)
    elif outcome.verification is not None:
        notes["verification"] = outcome.verification.model_dump()
    return notes


def train_note(train: Train[MergeReport]) -> str:
    """Return what is to be said about a train as a whole; empty: nothing."""
    if train.is_flaky:
        return "The verification is flaky: it gave two answers about the same files."
    if train.failed_before is None or train.verification is None:
        return ""
    code = train.verification.exit_code
    if code == 0:
        return "The verification failed before these changes, and passes with them."
    before = "The verification failed before these changes too, and still fails"
    tests = failing_tests(train.verification)
    if not train.is_compared or tests is None:
        return (
            f"{before} (exit code {code}). Its output does not say which tests fail, so no change "
            "was blamed."
        )
    return f"{before} (exit code {code}), in no test that passed before: {_named(tests.failing)}."


def message(landed: Landed) -> str:
    """Return what the agent of a task that is sent back is told."""
    verification = landed.get("verification")
    if isinstance(verification, Mapping):
        return CHANGES_BREAK.format(**verification, why=landed["reason"])
    lines = [f"- {one['path']}: {one['reason']}" for one in conflicts_of(landed)]
    return CHANGES_CONFLICT.format(conflicts="\n".join(lines))


def conflicts_of(landed: Landed) -> list[Mapping[str, JsonValue]]:
    """Return the conflicts of a `child.landed`: `path` and `reason` of each."""
    conflicts = landed.get("conflicts")
    found = conflicts if isinstance(conflicts, list) else []
    return [one for one in found if isinstance(one, Mapping)]


def _reason(outcome: Outcome[MergeReport], changed: Sequence[str]) -> str:
    if outcome.conflicts is not None:
        paths = [one.path for one in outcome.conflicts.conflicts]
        return f"It conflicts with what the files have: {_first(paths)}."
    failure = f"(exit code {outcome.verification.exit_code if outcome.verification else 1})"
    subject = f"{_first(changed)}: " if changed else ""
    if not outcome.is_cause:
        return (
            f"{subject}the verification fails with this change and others together {failure}; which "
            "of them is the cause was not found within the train's verifications."
        )
    if outcome.new_failures:
        return f"{subject}this change breaks {_named(outcome.new_failures)} {failure}."
    return f"{subject}this change breaks the verification, which passes without it {failure}."


def _named(tests: Collection[FailingTest]) -> str:
    return _first(sorted(test.name for test in tests))


def _first(names: Sequence[str]) -> str:
    """Return the first names of a list, and how many it has besides."""
    left = len(names) - NAMED
    more = f" and {left} more" if left > 0 else ""
    return ", ".join(names[:NAMED]) + more


def _conflicts(report: MergeReport) -> JsonValue:
    shown = report.conflicts[:SHOWN_CONFLICTS]
    return [{"path": one.path, "reason": one.reason} for one in shown]
