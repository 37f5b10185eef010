"""`apply`: merges the changes of jobs into a folder, and reports the outcome of each job."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ...client import JobClient
from ...configuration.settings import load_settings
from ...jobs.changes import ChangeKind
from ...jobs.failures import BlobMissing, JobFailure
from ...jobs.result import JobResult
from ...landing.branch import BranchLanding, land_on_branch
from ...landing.runs import Runs, find_base, keep_conflicts
from ...shortening import count
from ...workspace.merge_report import MergeReport
from ...workspace.three_way import How
from ..terminal import held_back, output
from ..terminal.exit_codes import ExitCode, UsageProblem
from ..terminal.formatting import short_id
from ..terminal.held_back import branch_document, branch_lines
from ..terminal.options import (
    AnyJobs,
    AsJson,
    BranchOption,
    ChosenLabel,
    WholeTree,
)
from ..terminal.questions import confirm
from ..terminal.session import last_run, open_client
from ..terminal.waiting import waiting
from .diff import (
    NamedJobs,
    SelectedJobs,
    parse_named_jobs,
    select_jobs,
)


def apply(
    jobs: AnyJobs = None,
    *,
    into: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The folder to merge into; default: the current one."),
    ] = Path(),
    tree: WholeTree = False,
    label: ChosenLabel = None,
    branch: BranchOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; print what a merge would do.")
    ] = False,
    include_executable_config: Annotated[
        bool, typer.Option(held_back.OPTION, help=held_back.OPTION_HELP)
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Merge the changes of jobs into a folder (three-way merge).

    The jobs are named by ids, or found by --tree or --label: those that succeeded, in the order of
    their submission. Stderr has a line for each: merged, conflicts, nothing to do. Changes that
    overlap with changes in the folder are reported as conflicts and not applied; nothing is
    overwritten. Files that this machine may run without a command are held back. Exit code 1 if
    not all changes were merged.
    """
    if not into.is_dir():
        raise UsageProblem(f"--into {str(into)!r} is not a folder.")
    if branch is not None and check:
        raise UsageProblem("--check merges nothing and --branch commits: leave one of them out.")
    target = _Target(into.resolve(), branch, include_executable_config, check=check)
    if not (jobs or label or tree):
        jobs = [_confirmed_last_run(target)]
    asked = parse_named_jobs(jobs, label, tree=tree)
    raise typer.Exit(asyncio.run(_apply(asked, target, as_json=as_json)))


@dataclass(frozen=True)
class _Target:
    """Where changes are merged, and how."""

    folder: Path
    branch: str | None
    include_executable_config: bool
    check: bool


def _confirmed_last_run(target: _Target) -> str:
    """Return the last run of the folder if a person at a terminal wants to merge it.

    Raises:
        UsageProblem: Nobody can be asked.
        typer.Exit: The person declined.
    """
    job_id = last_run(target.folder)
    short = short_id(job_id)
    if not (output.stdin_is_terminal() and output.stderr_is_terminal()):
        raise UsageProblem(
            f"Give the ID of a job. The last run of {target.folder} is {short}: "
            f"fanout apply {short}"
        )
    if not confirm(f"Merge {short}, the last run of {target.folder}?"):
        raise typer.Exit(ExitCode.NOT_ALLOWED)
    return job_id


async def _apply(asked: NamedJobs, target: _Target, *, as_json: bool) -> ExitCode:
    async with open_client() as client:
        chosen = await select_jobs(client, asked)
        runs = Runs(load_settings().state_dir)
        if not as_json:
            chosen.say_left_out()
        if target.branch is not None:
            return await _apply_to_branch(client, runs, chosen, target, as_json=as_json)
        merges = await _merged(client, runs, chosen, target, asked, as_json=as_json)
    if as_json:
        documents = [merge.document() for merge in merges]
        output.document({"jobs": documents} if asked.is_many else documents[0])
    else:
        if asked.is_many:
            output.notice(totals(merges))
        if target.check:
            output.notice("Checked only; nothing was changed.")
    return _code(merge.complete for merge in merges)


def _code(complete: Iterable[bool]) -> ExitCode:
    return ExitCode.DONE if all(complete) else ExitCode.WORK_FAILED


async def _merged(
    client: JobClient,
    runs: Runs,
    chosen: SelectedJobs,
    target: _Target,
    asked: NamedJobs,
    *,
    as_json: bool,
) -> list[JobMerge]:
    """Merge jobs one after the other; of many, one that cannot be merged is reported as such.

    Raises:
        JobFailure: The only job cannot be merged.
    """
    reason = "it did not succeed"
    merges = [JobMerge(one.job_id, reason=reason, left_out=True) for one in chosen.left_out]
    stopped = ""
    for result in chosen.results:
        if stopped:
            merges.append(JobMerge(result.job_id, reason=stopped))
            continue
        try:
            ask = not (target.check or as_json)
            with waiting(f"merging {short_id(result.job_id)} into {target.folder}"):
                report = await _apply_one(client, runs, result, target, ask=ask)
            merge = JobMerge(result.job_id, report)
        except JobFailure as failure:
            if not asked.is_many:
                raise
            merge = JobMerge(result.job_id, reason=str(failure))
            if not isinstance(failure, BlobMissing):  # the folder cannot be written
                stopped = f"not tried, because {short_id(result.job_id)} could not be written"
        merges.append(merge)
        if not as_json:
            kept = None if target.check else runs.conflicts.place(result.job_id)
            print_report(merge.report, kept)
            output.notice(merge.line())
    return merges


async def _apply_one(
    client: JobClient, runs: Runs, result: JobResult, target: _Target, *, ask: bool
) -> MergeReport:
    if result.changes is None:
        return MergeReport()
    into, job_id = target.folder, result.job_id
    report = await client.apply(
        job_id,
        into,
        check=target.check,
        include_executable_config=target.include_executable_config,
    )
    if held_back.may_land(report.held_back, ask=ask):
        report = await client.apply(job_id, into, include_executable_config=True)
    if not target.check:
        await keep_conflicts(client, runs, job_id, into, report)
    return report


async def _apply_to_branch(
    client: JobClient, runs: Runs, chosen: SelectedJobs, target: _Target, *, as_json: bool
) -> ExitCode:
    job_ids = [result.job_id for result in chosen.results if result.changes]
    if not job_ids:
        if as_json:
            output.document({**branch_document(None), "outcome": "nothing", "jobs": []})
        output.notice("No job changed anything.")
        return ExitCode.DONE
    run = runs.landing(job_ids[0])
    is_same = run is not None and run.workspace == target.folder
    where = BranchLanding(
        target.folder,
        str(target.branch),
        await asyncio.to_thread(find_base, runs, run) if run and is_same else None,
        target.include_executable_config,
    )
    with waiting(f"committing to branch {target.branch}"):
        report = await land_on_branch(client, job_ids, where)
    kept = None
    if report.outcome != "before":
        kept = await asyncio.to_thread(runs.conflicts.keep, job_ids[-1], report.conflicts)
    if as_json:
        merge = report.merge.model_dump(mode="json")
        brought = {commit.job_id for commit in report.commits}
        jobs = [
            {
                "id": one,
                "job_id": one,
                "outcome": "committed" if one in brought else "nothing to do",
            }
            for one in job_ids
        ]
        document = {**merge, "outcome": report.outcome, **branch_document(report)}
        output.document({**document, "jobs": jobs})
    else:
        print_report(report.merge, kept)
        for line in branch_lines(report, target.folder):
            output.notice(line)
    return ExitCode.DONE if report.merge.complete else ExitCode.WORK_FAILED


class MergeOutcome(StrEnum):
    """The outcome of a merge of a job's changes."""

    MERGED = "merged"
    NOTHING = "nothing to do"
    """It changed nothing, or everything was merged before."""
    CONFLICTS = "conflicts"
    INCOMPLETE = "incomplete"
    """Some changes were held back, refused or could not be written."""
    FAILED = "failed"
    """Its changes could not be read, or the folder not be written."""
    LEFT_OUT = "left out"
    """It did not succeed, or it follows a job that could not be written."""


@dataclass(frozen=True)
class JobMerge:
    """The merge of one job."""

    job_id: str
    report: MergeReport = field(default_factory=MergeReport)
    reason: str = ""
    """The reason why there is no report."""
    left_out: bool = False

    @property
    def outcome(self) -> MergeOutcome:
        """The outcome of the merge of its changes."""
        if self.left_out:
            return MergeOutcome.LEFT_OUT
        if self.reason:
            return MergeOutcome.FAILED
        if self.report.conflicts:
            return MergeOutcome.CONFLICTS
        if not self.report.complete:
            return MergeOutcome.INCOMPLETE
        is_there = all(file.how == ALREADY for file in self.report.applied)
        return MergeOutcome.NOTHING if is_there else MergeOutcome.MERGED

    @property
    def complete(self) -> bool:
        """Whether no part of it needs a person."""
        return self.left_out or self.outcome in {MergeOutcome.MERGED, MergeOutcome.NOTHING}

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
        if self.outcome is MergeOutcome.NOTHING:
            why = "everything was merged before" if report.applied else "it changed nothing"
        else:
            only_merged = self.outcome is MergeOutcome.MERGED and len(counts) == 1
            why = self.reason or ", ".join(counts).removesuffix(" merged" if only_merged else "")
        return f"{short_id(self.job_id)}  {self.outcome}: {why}"


ALREADY: How = "already"


def totals(merges: Sequence[JobMerge]) -> str:
    """Return how many jobs had which outcome, as a line."""
    counts = Counter(merge.outcome for merge in merges)
    outcomes = ", ".join(
        f"{counts[outcome]} {'with ' * (outcome is MergeOutcome.CONFLICTS)}{outcome}"
        for outcome in MergeOutcome
        if counts[outcome]
    )
    return f"{count(len(merges), 'job')}: {outcomes}." if merges else "No job changed anything."


def print_report(report: MergeReport, kept: Path | None = None) -> None:
    """Print the merged changes on stdout and those that were not merged on stderr.

    Args:
        report: The report.
        kept: The folder with both sides of conflicts.
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
        output.notice(f"Both sides of the conflicts are in {kept}")
    for line in held_back.unlanded_lines(report):
        output.notice(line)
    if report.held_back:
        output.notice(f"To merge held back changes, add {held_back.OPTION}.")
