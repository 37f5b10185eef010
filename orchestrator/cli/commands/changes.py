"""`diff` and `apply`: print a job's changes, merge them into a folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from fanout.orchestrator.cli.terminal import held_back, output
from fanout.orchestrator.cli.terminal.branches import branch_document, branch_lines
from fanout.orchestrator.cli.terminal.conflict_view import landing_conflicts, task_conflicts
from fanout.orchestrator.cli.terminal.exit_codes import ExitCode, UsageProblem
from fanout.orchestrator.cli.terminal.grid import padded
from fanout.orchestrator.cli.terminal.ids import resolve_job
from fanout.orchestrator.cli.terminal.options import AsJson, BranchOption, JobArgument, JobArguments
from fanout.orchestrator.cli.terminal.session import ended_result, open_client
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.settings import load_settings
from fanout.orchestrator.jobs.changes import ChangeKind, FileChange
from fanout.orchestrator.landing.branch import BranchLanding, land_on_branch
from fanout.orchestrator.landing.runs import Runs, base_of, keep_conflicts
from fanout.orchestrator.workspace.hold_back import held_back_by_name
from fanout.orchestrator.workspace.merge_report import MergeReport

_LINE_STYLES = (
    ("+++", "bold"),
    ("---", "bold"),
    ("diff ", "bold"),
    ("@@", "cyan"),
    ("+", "green"),
    ("-", "red"),
)


def diff(
    job: JobArgument,
    stat: Annotated[
        bool,
        typer.Option("--stat", help="Print only the changed files, with lines added and removed."),
    ] = False,
    conflicts: Annotated[
        bool,
        typer.Option(
            "--conflicts",
            help="Print both sides of what could not be merged: of its landing, and of its tasks.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print a job's changes as a patch for `git apply`."""
    if stat and conflicts:
        raise UsageProblem("--stat and --conflicts print different things: leave one of them out.")
    if conflicts:
        asyncio.run(_conflicts(job, as_json=as_json))
    else:
        asyncio.run(_diff(job, stat=stat, as_json=as_json))


async def _conflicts(prefix: str, *, as_json: bool) -> None:
    async with open_client() as client:
        job_id = await resolve_job(client, prefix)
        kept = Runs(load_settings().state_dir).conflicts
        shown = [*landing_conflicts(kept, job_id), *await task_conflicts(client, job_id)]
    if as_json:
        output.document({"conflicts": [vars(one) for one in shown]})
    elif not shown:
        output.notice(f"Job {job_id} has no conflicts.")
    for one in () if as_json else shown:
        output.payload(
            f"conflict  {output.one_line(one.path) or 'all'}: {output.one_line(one.reason)}"
        )
        output.payload(f"  {output.one_line(one.where)}")
        _print_patch(one.diff.encode())


async def _diff(prefix: str, *, stat: bool, as_json: bool) -> None:
    async with open_client() as client:
        job_id = await resolve_job(client, prefix)
        ended = await ended_result(client, job_id)
        files = ended.files_modified
        if ended.files_omitted and (as_json or stat):
            async with client.changes(job_id) as bundle:
                files = bundle.changes.summary()
        if as_json:
            output.document(
                {
                    "files": [change.model_dump(mode="json") for change in files],
                    "held_back": [
                        {"path": path, "reason": reason}
                        for path, reason in held_back_by_name(files).items()
                    ],
                }
            )
        elif ended.changes is None:
            output.notice(f"Job {job_id} changed nothing.")
        elif stat:
            print_stat(files)
        else:
            async with client.changes(job_id) as bundle:
                _print_patch(bundle.patch())


def apply(
    jobs: JobArguments,
    *,
    into: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The folder to merge into; default: the current one."),
    ] = Path(),
    tree: Annotated[
        bool, typer.Option("--tree", help="Merge all jobs that were submitted with each ID.")
    ] = False,
    branch: BranchOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; print what a merge would do.")
    ] = False,
    include_executable_config: Annotated[
        bool, typer.Option(held_back.OPTION, help=held_back.OPTION_HELP)
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Merge the changes of jobs into a folder, one after the other (three-way merge).

    Changes that overlap with changes in the folder are reported as conflicts and not applied;
    nothing is overwritten. Files that become code on this machine by themselves are held back.
    Exit code 1 if not all changes were merged.
    """
    if not into.is_dir():
        raise UsageProblem(f"--into {str(into)!r} is not a folder.")
    if branch is not None and check:
        raise UsageProblem("--check merges nothing, --branch commits: leave one of them out.")
    target = _Target(into.resolve(), branch, include_executable_config, check=check)
    raise typer.Exit(asyncio.run(_apply(jobs, target, tree=tree, as_json=as_json)))


@dataclass(frozen=True)
class _Target:
    """Where changes are merged, and how."""

    folder: Path
    branch: str | None
    include_executable_config: bool
    check: bool


async def _apply(
    prefixes: Sequence[str], target: _Target, *, tree: bool, as_json: bool
) -> ExitCode:
    async with open_client() as client:
        job_ids = [await resolve_job(client, prefix) for prefix in prefixes]
        if tree:
            job_ids = await _with_trees(client, job_ids)
        for job_id in job_ids:
            await ended_result(client, job_id)
        runs = Runs(load_settings().state_dir)
        if target.branch is not None:
            return await _apply_to_branch(client, runs, job_ids, target, as_json=as_json)
        reports = {}
        for job_id in job_ids:
            report = reports[job_id] = await _apply_one(
                client, runs, job_id, target, ask=not (target.check or as_json)
            )
            if not as_json:
                print_report(report, None if target.check else runs.conflicts.place(job_id))
    if as_json and len(reports) == 1:
        output.document(report.model_dump(mode="json"))
    elif as_json:
        documents = [{"job_id": one, **reports[one].model_dump(mode="json")} for one in reports]
        output.document({"jobs": documents})
    elif target.check:
        output.notice("Checked only; nothing was changed.")
    is_complete = all(report.complete for report in reports.values())
    return ExitCode.DONE if is_complete else ExitCode.WORK_FAILED


async def _apply_one(
    client: JobClient, runs: Runs, job_id: str, target: _Target, *, ask: bool
) -> MergeReport:
    into = target.folder
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
    client: JobClient, runs: Runs, job_ids: Sequence[str], target: _Target, *, as_json: bool
) -> ExitCode:
    run = runs.landing(job_ids[0])
    is_same = run is not None and run.workspace == target.folder
    where = BranchLanding(
        target.folder,
        str(target.branch),
        await asyncio.to_thread(base_of, runs, run) if run and is_same else None,
        target.include_executable_config,
    )
    report = await land_on_branch(client, job_ids, where)
    kept = None
    if report.outcome != "before":
        kept = await asyncio.to_thread(runs.conflicts.keep, job_ids[-1], report.conflicts)
    if as_json:
        merge = report.merge.model_dump(mode="json")
        output.document({**merge, "outcome": report.outcome, **branch_document(report)})
    else:
        print_report(report.merge, kept)
        for line in branch_lines(report, target.folder):
            output.notice(line)
    return ExitCode.DONE if report.merge.complete else ExitCode.WORK_FAILED


async def _with_trees(client: JobClient, job_ids: Sequence[str]) -> list[str]:
    """Return the jobs of trees that are nobody's children, and have succeeded with changes."""
    found: dict[str, None] = {}
    for job_id in job_ids:
        records = await client.tree(job_id)
        known = {record.id for record in records}
        for record in records:
            if record.parent_id not in known:
                ended = await ended_result(client, record.id)
                if ended.success and ended.changes:
                    found[record.id] = None
                elif not ended.success:
                    output.notice(f"Job {record.id} did not succeed, so it is left out.")
    return list(found)


def print_report(report: MergeReport, kept: Path | None = None) -> None:
    """Print the merged changes on stdout and those that were not merged on stderr.

    Args:
        report: The report.
        kept: Where both sides of conflicts lie.
    """
    for merged in report.applied:
        output.payload(f"{merged.how:<8}  {merged.change:<8}  {output.one_line(merged.path)}")
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
    for line in held_back.lines(report.held_back):
        output.notice(line)
    if report.held_back:
        output.notice(f"What is held back lands with {held_back.OPTION}.")


def print_stat(
    files: Sequence[FileChange],
    write: Callable[[str], None] = output.payload,
    most: int | None = None,
) -> None:
    """Print the changed files with lines added and removed, the totals, and what is held back.

    Args:
        files: The files.
        write: Prints a line.
        most: Of the files; the others are counted only.
    """
    named = files[:most]
    width = max((cell_len(_name(change)) for change in named), default=0)
    for change in named:
        lines = "binary" if change.binary else f"+{change.lines_added} -{change.lines_removed}"
        write(f"{padded(_name(change), width)}  {change.change:<8}  {lines}")
    if len(files) > len(named):
        write(f"… and {len(files) - len(named)} more")
    added = sum(change.lines_added for change in files)
    removed = sum(change.lines_removed for change in files)
    write(f"{len(files)} {'file' if len(files) == 1 else 'files'} changed, +{added} -{removed}")
    for path, reason in held_back_by_name(files).items():
        write(f"held back by a merge: {output.one_line(path)}: {reason}")


def _name(change: FileChange) -> str:
    name = output.one_line(change.path)
    renamed = change.change is ChangeKind.RENAMED and change.from_path
    return f"{output.one_line(change.from_path)} → {name}" if renamed else name


def _print_patch(patch: bytes) -> None:
    if not output.stdout_is_terminal():
        output.raw_payload(patch)
        return
    console = Console(highlight=False, soft_wrap=True)
    for line in patch.decode(errors="replace").splitlines():
        style = next((style for head, style in _LINE_STYLES if line.startswith(head)), "")
        console.print(Text(output.printable(line), style=style))
