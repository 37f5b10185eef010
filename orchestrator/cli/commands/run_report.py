"""What `run` and `attach` print at the end: the answer, what landed, what did not, and the cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.cli.commands.changes import print_stat
from orchestrator.cli.terminal import formatting, held_back, output
from orchestrator.cli.terminal.exit_codes import ExitCode, exit_code_of_results
from orchestrator.jobs.result import JobResult, Usage
from orchestrator.runs import Landing
from orchestrator.workspace.merge import MergeReport


@dataclass(frozen=True)
class Unmerged:
    """A change of a child that could not be merged into its parent's files."""

    job_id: str
    path: str
    """Empty: all that it changed."""
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
        print_stat([file for file in result.files_modified if file.path in merged], output.notice)
    for line in _left_out(outcome, landing):
        output.notice(line)
    output.notice(f"{formatting.used(outcome.usage)}, {formatting.span(result.execution_seconds)}")


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
        "held_back": [
            {"job_id": job_id, "path": one.path, "reason": one.reason}
            for one in (landed.held_back if landed else ())
        ],
        "usage": outcome.usage.model_dump(exclude_none=True),
    }


def _left_out(outcome: RunOutcome, landing: Landing | None) -> list[str]:
    """Return the lines about what did not land, with the next command."""
    result, landed = outcome.result, outcome.landed
    lines = [
        f"WARNING: {output.one_line(one.path) or 'all'} of job {one.job_id} was not merged, and the "
        f"agent was told: {output.one_line(one.reason)}. See: fanout diff {one.job_id}"
        for one in outcome.unmerged
    ]
    if not result.changes:
        return lines
    if landed is None and landing is not None and landing.landed:
        return [*lines, f"It was merged into {landing.workspace} before."]
    if landed is None:
        folder = "DIR" if landing is None else str(landing.workspace)
        see = f"fanout diff {result.job_id} --stat"
        merge = f"fanout apply {result.job_id} --into {folder}"
        count = f"{result.files_count} changed files were not merged"
        return [*lines, f"{count}. To see them: {see} · to merge them: {merge}"]
    if landed.conflicts:
        named = ", ".join(output.one_line(conflict.path) for conflict in landed.conflicts)
        count = "1 conflict" if len(landed.conflicts) == 1 else f"{len(landed.conflicts)} conflicts"
        see = f"fanout diff {result.job_id}"
        lines.append(f"WARNING: {count}, changes not merged: {named}. See: {see}")
    for kind in ("refused", "failed", "skipped"):
        lines += [
            f"{kind}  {output.one_line(entry.path)}: {output.one_line(entry.reason)}"
            for entry in getattr(landed, kind)
        ]
    if landed.held_back:
        lines += held_back.lines(landed.held_back)
        lines.append(f"To land what is held back: fanout apply {result.job_id} {held_back.OPTION}")
    return lines
