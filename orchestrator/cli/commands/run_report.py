"""The final output of `run` and `attach`: the answer, what landed, what did not, and the cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...client.job_reader import JobReader
from ...jobs.result import JobResult, Usage, Verification
from ...jobs.state import JobRecord, JobState
from ...landing.conflicts import Unmerged
from ...landing.failing_tests import failing_tests
from ...landing.runs import Landing, LandingReport
from ...shortening import count
from ..failure_report import exit_code_of_results
from ..terminal import formatting, held_back, output
from ..terminal.exit_codes import ExitCode
from ..terminal.formatting import short_id
from ..terminal.held_back import branch_document, branch_lines, kept_note
from ..terminal.output import print_answer
from .diff import print_stat, stat_document

FAILURES = {JobState.FAILED, JobState.TIMED_OUT}
"""The states of failed jobs of a run; cancelled jobs were ended on purpose."""
STAT_LINES = 20
"""The most files that the end of a run names: a screen; `fanout diff --stat` names all."""
FAILED_LINES = 3
"""The most failed jobs, or failing tests, that it names; the jobs' reasons are in the live view,
too."""
REASON_CHARACTERS = 120
"""The longest reason: with the ids before it, two or three lines of a terminal."""


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


@dataclass(frozen=True)
class RunOutcome:
    """The end of a run, and its landing."""

    result: JobResult
    usage: Usage
    """The usage of all jobs of the run."""
    landed: LandingReport | None
    """The landing; None when nothing was to be landed, or the run failed."""
    unmerged: tuple[Unmerged, ...]
    """The conflicts between the agents of the run, which the root agent knows."""
    failed_jobs: tuple[FailedJob, ...] = ()
    """The failures of the root agent's helpers, which it knows."""
    not_landed: str | None = None
    """The reason why the landing failed."""
    is_answer_verified: bool = False
    """Whether the run's `verify` passes. It checks the result, and not only that the changes of
    tasks break nothing."""

    is_script: bool = False
    """Whether a script ran: it decides what a failed task means."""

    @property
    def passes(self) -> bool | None:
        """Whether the final files pass the run's verifications; None: it has none."""
        verified = self.result.verified
        return None if verified is None else verified.exit_code == 0

    @property
    def lasting_failures(self) -> int:
        """The number of failed tasks without a replacement.

        A later task, a check of the run, or a script that has handled it, is one.
        """
        if self.is_answer_verified or self.is_script:
            return 0
        return sum(not one.done_again for one in self.failed_jobs)

    @property
    def status(self) -> str:
        """How the run ended, in a few words."""
        if not self.result.success:
            return str(self.result.state)
        failed = self.lasting_failures
        said = [f"{count(failed, 'task')} failed"] if failed else []
        said += ["the verification fails"] if self.passes is False else []
        return ", ".join(["done", *said]) if said else str(self.result.state)


def run_exit_code(outcome: RunOutcome) -> ExitCode:
    """Return the exit code of a run.

    It is 1 if the run or its landing failed, if conflicts remain, if a task failed finally, or if
    the final files do not pass its verification.
    """
    conflicts = outcome.landed is not None and outcome.landed.merge.conflicts
    failed = conflicts or outcome.not_landed or outcome.lasting_failures or outcome.passes is False
    if outcome.result.success and failed:
        return ExitCode.WORK_FAILED
    return exit_code_of_results([outcome.result])


def print_outcome(
    outcome: RunOutcome, landing: Landing | None, document: Mapping[str, Any] | None
) -> None:
    """Print the end of a run: its answer, what landed, what did not and why, and its usage.

    Args:
        outcome: The end of the run.
        landing: Where it landed; None: that is unknown here.
        document: Further keys of a JSON document; None prints text.
    """
    result = outcome.result
    if document is not None:
        output.document({**_document(outcome), **document})
    else:
        _print_answer(outcome)
    for line in formatting.failure_lines(result):
        output.notice(line)
    if outcome.landed is not None and outcome.landed.merge.applied:
        branch = outcome.landed.branch
        where = f"branch {branch.branch}" if branch else str(landing.workspace if landing else "")
        output.notice(f"\n{'Committed to' if branch else 'Merged into'} {where}:")
        merged = {file.path for file in outcome.landed.merge.applied}
        files = [file for file in result.files_modified if file.path in merged]
        print_stat(files, output.notice, most=STAT_LINES)
    elif result.changes:
        output.notice(f"\n{'Changed' if result.success else 'Changed before it ended'}:")
        omitted = result.files_omitted
        print_stat(result.files_modified, output.notice, most=STAT_LINES, omitted=omitted)
    if result.success and outcome.lasting_failures:
        output.notice(f"\n{outcome.status[0].upper()}{outcome.status[1:]}:")
    for line in _left_out(outcome, landing):
        output.notice(line)
    if not result.changes:
        output.notice("No file was changed.")
    if result.verified is not None:
        for line in _verified(result.verified):
            output.notice(line)
    output.notice(formatting.used(outcome.usage, result.execution_seconds))
    what = "--script FILE" if outcome.is_script else '"…"'
    output.notice(f"  To continue: fanout run --continue {short_id(result.job_id)} {what}")


def _print_answer(outcome: RunOutcome) -> None:
    """Print an agent's last words, or the value of a script."""
    value = outcome.result.output
    if not outcome.is_script or value is None:
        print_answer(outcome.result.summary)
    elif isinstance(value, str):
        output.payload(value)
    else:
        output.document(value)


def _document(outcome: RunOutcome) -> dict[str, Any]:
    result, landed = outcome.result, outcome.landed
    merged = landed.merge if landed else None
    job_id = result.job_id
    return {
        "success": result.success,
        "status": outcome.status,
        "text": result.summary,
        "output": result.output,
        "id": job_id,
        "root_id": job_id,
        "error": result.error.model_dump() if result.error else None,
        "verified": result.verified.model_dump() if result.verified else None,
        "passes": outcome.passes,
        "landed": None if merged is None else [file.path for file in merged.applied],
        "not_landed": outcome.not_landed,
        **branch_document(landed.branch if landed else None),
        "conflicts": [
            {"job_id": job_id, "path": one.path, "reason": one.reason}
            for one in (merged.conflicts if merged else ())
        ],
        "conflicts_kept": str(landed.conflicts_kept) if landed and landed.conflicts_kept else None,
        "conflicts_between_agents": [vars(one) for one in outcome.unmerged],
        "failed_jobs": [_failed_document(one) for one in outcome.failed_jobs],
        "held_back": [
            {"job_id": job_id, "path": one.path, "reason": one.reason}
            for one in (merged.held_back if merged else ())
        ],
        "hidden": list(merged.unknown_hidden) if merged else [],
        "files": [change.model_dump(mode="json") for change in result.files_modified],
        **stat_document(result.files_modified, result.files_omitted),
        "execution_seconds": result.execution_seconds,
        "usage": outcome.usage.model_dump(exclude_none=True),
    }


def _failed_document(failed: FailedJob) -> dict[str, Any]:
    # The second key is the one of earlier releases.
    return output.with_id(failed.job_id, {**vars(failed), "mended": failed.done_again})


def _failed(outcome: RunOutcome) -> list[str]:
    """Return the lines about failed jobs, with the command that shows more."""
    failed = sorted(outcome.failed_jobs, key=lambda one: one.done_again)
    lines = [
        f"✗ {one.agent} {short_id(one.job_id)} {one.state}{', done again' if one.done_again else ''}: "
        f"{output.one_line(one.reason, REASON_CHARACTERS)}"
        for one in failed[:FAILED_LINES]
    ]
    if more := len(failed) - len(lines):
        lines.append(f"… and {more} more that did not succeed")
    if failed:
        lines.append(f"  To see all: fanout tree {short_id(outcome.result.job_id)}")
    return lines


def _verified(run: Verification) -> list[str]:
    """Return the lines about the verification of a run's final files."""
    command = output.one_line(run.command, REASON_CHARACTERS)
    if run.exit_code == 0:
        return [f"The files pass the verification: {command}"]
    found = failing_tests(run)
    names = sorted(test.name for test in found.failing) if found else []
    shown = names[:FAILED_LINES] or run.output_tail.strip().splitlines()[-FAILED_LINES:]
    lines = [
        f"WARNING: the files do not pass the verification (exit code {run.exit_code}): {command}"
    ]
    lines += [f"  {output.one_line(line, REASON_CHARACTERS)}" for line in shown]
    if more := len(names) - FAILED_LINES if names else 0:
        lines += [f"  … and {more} more failing tests"] if more > 0 else []
    return lines


def _left_out(outcome: RunOutcome, landing: Landing | None) -> list[str]:
    """Return the lines about changes that did not land, with the next command."""
    result, landed = outcome.result, outcome.landed
    lines = [
        f"WARNING: {output.one_line(one.path) or 'all'} of job {short_id(one.job_id)} was not "
        f"merged: {output.one_line(one.reason).rstrip('.')}. Its agent knows.\n"
        f"  To see it: fanout diff {short_id(one.job_id)}"
        for one in outcome.unmerged
    ]
    lines += _failed(outcome)
    if not result.changes:
        return lines
    if outcome.not_landed is not None:
        return [*lines, outcome.not_landed]
    if landed is None and landing is not None and landing.landed:
        where = f"committed to branch {landing.branch}" if landing.branch else "merged"
        return [*lines, f"It was {where} into {landing.workspace} before."]
    if landed is None:
        folder = "DIR" if landing is None else str(landing.workspace)
        see = f"fanout diff {short_id(result.job_id)} --stat"
        merge = f"fanout apply {short_id(result.job_id)} --into {folder}"
        files = count(result.files_count, "changed file")
        were = "was" if result.files_count == 1 else "were"
        return [
            *lines,
            f"{files} {were} not merged.\n  To see them: {see}\n  To merge them: {merge}",
        ]
    lines += _not_merged(landed, result.job_id)
    if landed.branch is not None:
        lines += branch_lines(landed.branch, landing.workspace if landing else None)
    return lines


def _not_merged(landed: LandingReport, job_id: str) -> list[str]:
    merged = landed.merge
    lines = []
    if merged.conflicts:
        named = ", ".join(output.one_line(conflict.path) for conflict in merged.conflicts)
        conflicts = count(len(merged.conflicts), "conflict")
        lines.append(
            f"WARNING: {conflicts}, changes not merged: {named}.\n"
            f"  See: fanout diff {short_id(job_id)} --conflicts{kept_note(landed.conflicts_kept)}"
        )
    lines += held_back.unlanded_lines(merged)
    if merged.held_back:
        to = " --branch OTHER" if landed.branch else ""
        lines.append(
            f"To land the held back changes:\n  fanout apply {short_id(job_id)}{to} "
            f"{held_back.OPTION}"
        )
    return lines
