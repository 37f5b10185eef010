"""What `run` and `attach` print at the end: the answer, what landed, what did not, and the cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.cli.commands.changes import print_stat
from orchestrator.cli.failure_report import exit_code_of_results
from orchestrator.cli.terminal import formatting, held_back, output
from orchestrator.cli.terminal.exit_codes import ExitCode
from orchestrator.jobs.result import JobResult, Usage
from orchestrator.runs import Landing
from orchestrator.workspace.merge import MergeReport

STAT_LINES = 20
"""Files that the end of a run names: a screen; `fanout diff --stat` names all."""


FAILED_LINES = 3
"""Failed jobs that it names; their reasons are in the live view, too."""
REASON_CHARACTERS = 120
"""Of a reason: with the ids before it, two or three lines of a terminal."""


@dataclass(frozen=True)
class Unmerged:
    """A change of a child that could not be merged into its parent's files."""

    job_id: str
    path: str
    """Empty: all that it changed."""
    reason: str


@dataclass(frozen=True)
class FailedJob:
    """A job of a run, other than its root, that did not succeed."""

    job_id: str
    agent: str
    state: str
    reason: str


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended, and what of it landed."""

    result: JobResult
    usage: Usage
    """What all jobs of the run have used."""
    landed: MergeReport | None
    """None when nothing was to be merged, or the run failed."""
    unmerged: tuple[Unmerged, ...]
    """The conflicts between the agents of the run, of which the root agent was told."""
    failed_jobs: tuple[FailedJob, ...] = ()
    """What the root agent's helpers could not do; it was told."""


def exit_code_of(outcome: RunOutcome) -> ExitCode:
    """Return the exit code of a run: 1 if it failed, or if conflicts remain."""
    if outcome.result.success and outcome.landed is not None and outcome.landed.conflicts:
        return ExitCode.WORK_FAILED
    return exit_code_of_results([outcome.result])


def print_outcome(
    outcome: RunOutcome, landing: Landing | None, document: Mapping[str, Any] | None
) -> None:
    """Print how a run ended: its answer, what landed, what did not and why, and what it used.

    Args:
        outcome: The end of the run.
        landing: Where it landed; None: that is not known here.
        document: Further keys of a JSON document; None prints text.
    """
    result, landed = outcome.result, outcome.landed
    if document is not None:
        output.document({**_document(outcome), **document})
    elif result.summary:
        output.payload(output.printable(result.summary))
    if result.error is not None:
        output.notice(f"{result.error.type}: {result.error.message}")
    if landed is not None and landed.applied:
        output.notice(f"\nMerged into {landing.workspace if landing else ''}:")
        merged = {file.path for file in landed.applied}
        files = [file for file in result.files_modified if file.path in merged]
        print_stat(files, output.notice, most=STAT_LINES)
    for line in _left_out(outcome, landing):
        output.notice(line)
    output.notice(f"{formatting.used(outcome.usage)}, {formatting.span(result.execution_seconds)}")
    output.notice(f'  To go on: fanout run --continue {result.job_id} "…"')


def _document(outcome: RunOutcome) -> dict[str, Any]:
    result, landed = outcome.result, outcome.landed
    job_id = result.job_id
    return {
        "success": result.success,
        "text": result.summary,
        "root_id": job_id,
        "error": result.error.model_dump() if result.error else None,
        "verified": result.verified.model_dump() if result.verified else None,
        "landed": None if landed is None else [file.path for file in landed.applied],
        "conflicts": [
            {"job_id": job_id, "path": one.path, "reason": one.reason}
            for one in (landed.conflicts if landed else ())
        ],
        "conflicts_between_agents": [vars(one) for one in outcome.unmerged],
        "failed_jobs": [vars(one) for one in outcome.failed_jobs],
        "held_back": [
            {"job_id": job_id, "path": one.path, "reason": one.reason}
            for one in (landed.held_back if landed else ())
        ],
        "usage": outcome.usage.model_dump(exclude_none=True),
    }


def _failed(outcome: RunOutcome) -> list[str]:
    """Return the lines about jobs that failed, with the command that says more."""
    failed = outcome.failed_jobs
    lines = [
        f"✗ {one.agent} {one.job_id} {one.state}: {output.one_line(one.reason, REASON_CHARACTERS)}"
        for one in failed[:FAILED_LINES]
    ]
    if more := len(failed) - len(lines):
        lines.append(f"… and {more} more that did not succeed")
    if failed:
        lines.append(f"  To see all: fanout tree {outcome.result.job_id}")
    return lines


def _left_out(outcome: RunOutcome, landing: Landing | None) -> list[str]:
    """Return the lines about what did not land, with the next command."""
    result, landed = outcome.result, outcome.landed
    lines = [
        f"WARNING: {output.one_line(one.path) or 'all'} of job {one.job_id} was not merged, and the "
        f"agent was told: {output.one_line(one.reason)}.\n  See: fanout diff {one.job_id}"
        for one in outcome.unmerged
    ]
    lines += _failed(outcome)
    if not result.changes:
        return lines
    if landed is None and landing is not None and landing.landed:
        return [*lines, f"It was merged into {landing.workspace} before."]
    if landed is None:
        folder = "DIR" if landing is None else str(landing.workspace)
        see = f"fanout diff {result.job_id} --stat"
        merge = f"fanout apply {result.job_id} --into {folder}"
        count = f"{result.files_count} changed files were not merged"
        return [*lines, f"{count}.\n  To see them: {see}\n  To merge them: {merge}"]
    if landed.conflicts:
        named = ", ".join(output.one_line(conflict.path) for conflict in landed.conflicts)
        count = "1 conflict" if len(landed.conflicts) == 1 else f"{len(landed.conflicts)} conflicts"
        see = f"fanout diff {result.job_id}"
        lines.append(f"WARNING: {count}, changes not merged: {named}.\n  See: {see}")
    for kind in ("refused", "failed", "skipped"):
        lines += [
            f"{kind}  {output.one_line(entry.path)}: {output.one_line(entry.reason)}"
            for entry in getattr(landed, kind)
        ]
    if landed.held_back:
        lines += held_back.lines(landed.held_back)
        lines.append(
            f"To land what is held back:\n  fanout apply {result.job_id} {held_back.OPTION}"
        )
    return lines
