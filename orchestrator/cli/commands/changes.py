"""`diff` and `apply`: print a job's changes, merge them into a folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from orchestrator.cli.terminal import held_back, output
from orchestrator.cli.terminal.exit_codes import ExitCode, UsageProblem
from orchestrator.cli.terminal.grid import padded
from orchestrator.cli.terminal.ids import resolve_job
from orchestrator.cli.terminal.options import AsJson, JobArgument
from orchestrator.cli.terminal.session import ended_result, open_client
from orchestrator.jobs.changes import ChangeKind, FileChange
from orchestrator.workspace.hold_back import held_back_by_name
from orchestrator.workspace.merge import MergeReport

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
    as_json: AsJson = False,
) -> None:
    """Print a job's changes as a patch for `git apply`."""
    asyncio.run(_diff(job, stat=stat, as_json=as_json))


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
    job: JobArgument,
    into: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The folder to merge into; default: the current one."),
    ] = Path(),
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; print what a merge would do.")
    ] = False,
    include_executable_config: Annotated[
        bool, typer.Option(held_back.OPTION, help=held_back.OPTION_HELP)
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Merge a job's changes into a folder (three-way merge).

    Changes that overlap with changes in the folder are reported as conflicts and not applied;
    nothing is overwritten. Files that become code on this machine by themselves are held back.
    Exit code 1 if not all changes were merged.
    """
    if not into.is_dir():
        raise UsageProblem(f"--into {str(into)!r} is not a folder.")
    done = _apply(
        job,
        into.resolve(),
        check=check,
        include_executable_config=include_executable_config,
        as_json=as_json,
    )
    raise typer.Exit(asyncio.run(done))


async def _apply(
    prefix: str, into: Path, *, check: bool, include_executable_config: bool, as_json: bool
) -> ExitCode:
    async with open_client() as client:
        job_id = await resolve_job(client, prefix)
        await ended_result(client, job_id)
        report = await client.apply(
            job_id, into, check=check, include_executable_config=include_executable_config
        )
        if held_back.may_land(report.held_back, ask=not (check or as_json)):
            report = await client.apply(job_id, into, include_executable_config=True)
    if as_json:
        output.document(report.model_dump(mode="json"))
    else:
        print_report(report)
        if check:
            output.notice("Checked only; nothing was changed.")
    return ExitCode.DONE if report.complete else ExitCode.WORK_FAILED


def print_report(report: MergeReport) -> None:
    """Print the merged changes on stdout and those that were not merged on stderr."""
    for merged in report.applied:
        output.payload(f"{merged.how:<8}  {merged.change:<8}  {output.one_line(merged.path)}")
    for conflict in report.conflicts:
        output.notice(
            f"conflict  {output.one_line(conflict.path)}: {output.one_line(conflict.reason)}"
        )
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
