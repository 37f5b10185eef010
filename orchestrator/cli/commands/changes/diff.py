"""`diff`: prints what jobs changed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from fanout.orchestrator.cli.commands.changes.selection import Wanted, selected, wanted
from fanout.orchestrator.cli.commands.changes.stat import print_stat, stat_document
from fanout.orchestrator.cli.terminal import output
from fanout.orchestrator.cli.terminal.conflict_view import landing_conflicts
from fanout.orchestrator.cli.terminal.exit_codes import UsageProblem
from fanout.orchestrator.cli.terminal.formatting import short_id, with_short_ids
from fanout.orchestrator.cli.terminal.ids import job_or_last_run
from fanout.orchestrator.cli.terminal.options import AnyJobs, AsJson, ChosenLabel, WholeTree
from fanout.orchestrator.cli.terminal.session import open_client
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.configuration.settings import load_settings
from fanout.orchestrator.jobs.changes import FileChange
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.landing.conflicts import task_conflicts
from fanout.orchestrator.landing.runs import Runs
from fanout.orchestrator.shortening import count
from fanout.orchestrator.workspace.hold_back import held_back_by_name

_LINE_STYLES = (
    ("+++", "bold"),
    ("---", "bold"),
    ("diff ", "bold"),
    ("@@", "cyan"),
    ("+", "green"),
    ("-", "red"),
)


def diff(
    jobs: AnyJobs = None,
    *,
    tree: WholeTree = False,
    label: ChosenLabel = None,
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
    """Print the changes of jobs as a patch for `git apply`."""
    if stat and conflicts:
        raise UsageProblem("--stat and --conflicts print different things: leave one of them out.")
    if not (jobs or label or tree):
        jobs = [job_or_last_run(None)]
    asked = wanted(jobs, label, tree=tree)
    if conflicts:
        asyncio.run(_conflicts(asked, as_json=as_json))
    else:
        asyncio.run(_diff(asked, stat=stat, as_json=as_json))


async def _conflicts(asked: Wanted, *, as_json: bool) -> None:
    kept = Runs(load_settings().state_dir).conflicts
    async with open_client() as client:
        ids = (await selected(client, asked, ended=False)).ids
        found = {
            job_id: [*landing_conflicts(kept, job_id), *await task_conflicts(client, job_id)]
            for job_id in ids
        }
    shown = [one for of_job in found.values() for one in of_job]
    if as_json:
        output.document({"conflicts": [vars(one) for one in shown]})
        return
    for job_id, of_job in found.items():
        if not of_job:
            output.notice(f"Job {short_id(job_id)} has no conflicts.")
    for one in shown:
        output.payload(
            f"conflict  {output.one_line(one.path) or 'all'}: {output.one_line(one.reason)}"
        )
        output.payload(f"  {with_short_ids(output.one_line(one.where))}")
        _print_patch(one.diff.encode())


async def _diff(asked: Wanted, *, stat: bool, as_json: bool) -> None:
    async with open_client() as client:
        chosen = await selected(client, asked)
        if as_json:
            documents = [
                {"id": one.job_id, "job_id": one.job_id} | _document(await _files(client, one))
                for one in chosen.results
            ]
            output.document({"jobs": documents} if asked.is_many else documents[0])
            return
        chosen.say_left_out()
        every: list[FileChange] = []
        for result in chosen.results:
            if result.changes is None:
                output.notice(f"Job {short_id(result.job_id)} {result.without_changes}.")
                continue
            if stat:
                files = await _files(client, result)
                if asked.is_many:
                    output.payload(f"{short_id(result.job_id)}:")
                print_stat(files)
                every += files
            else:
                if asked.is_many:
                    output.notice(f"Job {short_id(result.job_id)}:")
                async with client.changes(result.job_id) as bundle:
                    _print_patch(await asyncio.to_thread(bundle.patch))
        if stat and asked.is_many:
            total = stat_document(every)
            changes = count(len(every), "change")
            lines = f"+{total['lines_added']} -{total['lines_removed']}"
            output.payload(f"{count(len(chosen.results), 'job')}: {changes}, {lines}")


async def _files(client: JobClient, result: JobResult) -> Sequence[FileChange]:
    """Return all changed files: the result lists the first ones."""
    if not result.files_omitted:
        return result.files_modified
    async with client.changes(result.job_id) as bundle:
        return await asyncio.to_thread(bundle.changes.summary)


def _document(files: Sequence[FileChange]) -> dict[str, Any]:
    held = held_back_by_name(files)
    return {
        "files": [change.model_dump(mode="json") for change in files],
        "held_back": [{"path": path, "reason": reason} for path, reason in held.items()],
    }


def _print_patch(patch: bytes) -> None:
    if not output.stdout_is_terminal():
        output.raw_payload(patch)
        return
    console = Console(highlight=False, soft_wrap=True)
    for line in patch.decode(errors="replace").splitlines():
        style = next((style for head, style in _LINE_STYLES if line.startswith(head)), "")
        console.print(Text(output.printable(line), style=style))
