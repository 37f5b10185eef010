"""`diff`: prints the changes of jobs that a person names by ids, trees or labels.

The end of a run prints its changed files in the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ...client import JobClient
from ...configuration.settings import load_settings
from ...jobs.changes import ChangeKind, FileChange
from ...jobs.result import JobResult
from ...jobs.state import JobRecord
from ...landing.conflicts import (
    KeptConflicts,
    TaskConflict,
    difference,
    task_conflicts,
)
from ...landing.runs import Runs
from ...shortening import count
from ...workspace.hold_back import held_back_by_name
from ..terminal import output
from ..terminal.exit_codes import UsageProblem, WorkFailed
from ..terminal.formatting import short_id, with_short_ids
from ..terminal.grid import padded
from ..terminal.options import (
    AnyJobs,
    AsJson,
    ChosenLabel,
    WholeTree,
    parse_labels,
)
from ..terminal.session import (
    ended_result,
    job_or_last_run,
    open_client,
    resolve_jobs,
    resolve_tree,
)

MOST_LABELLED = 100_000
"""The most jobs with a label: more than a Redis of usual size stores."""
_LINE_STYLES = (
    ("+++", "bold"),
    ("---", "bold"),
    ("diff ", "bold"),
    ("@@", "cyan"),
    ("+", "green"),
    ("-", "red"),
)


@dataclass(frozen=True)
class NamedJobs:
    """The jobs that a person named."""

    prefixes: tuple[str, ...]
    labels: Mapping[str, str]
    tree: bool

    @property
    def is_many(self) -> bool:
        """Whether there may be several jobs, so that the output names each."""
        return len(self.prefixes) != 1 or self.tree


@dataclass(frozen=True)
class SelectedJobs:
    """The selected jobs, in order."""

    ids: tuple[str, ...]
    results: tuple[JobResult, ...] = ()
    left_out: tuple[JobResult, ...] = ()
    """The jobs of a tree or with a label that did not succeed."""

    def say_left_out(self) -> None:
        """Report the jobs that are left out."""
        for result in self.left_out:
            output.notice(f"Job {short_id(result.job_id)} did not succeed, so it is left out.")


def parse_named_jobs(
    prefixes: Sequence[str] | None, labels: Sequence[str] | None, *, tree: bool
) -> NamedJobs:
    """Return the jobs that the options of a command name.

    Raises:
        UsageProblem: Nothing is named, or ids and labels exclude each other.
    """
    parsed = parse_labels(labels)
    if not prefixes and not parsed:
        raise UsageProblem("Name the jobs: by ID, or by --label KEY=VALUE.")
    if tree and not prefixes:
        raise UsageProblem("--tree needs the ID of a job of the tree.")
    if prefixes and parsed and not tree:
        raise UsageProblem(
            "Use IDs or --label, not both; or add --tree for the jobs of a tree that have the "
            "label."
        )
    return NamedJobs(tuple(prefixes or ()), parsed, tree)


async def select_jobs(client: JobClient, asked: NamedJobs, *, ended: bool = True) -> SelectedJobs:
    """Return the selected jobs, and their results.

    For a tree and for a label these are the jobs that succeeded, in the order of their submission,
    without those whose changes are already in another one's: a child's are in its parent's.

    Args:
        client: The connected client.
        asked: What a person named.
        ended: Whether all of them have to have ended.

    Raises:
        UnknownJob, InvalidJob: An id is unknown or ambiguous, or no job has the labels.
        WorkFailed: One has not ended.
    """
    if not (asked.tree or asked.labels):
        ids = await resolve_jobs(client, asked.prefixes)
        results = [await ended_result(client, job_id) for job_id in ids] if ended else []
        return SelectedJobs(tuple(ids), tuple(results))
    records = await _found(client, asked)
    if not records:
        raise WorkFailed("No job has these labels.")
    ids = [record.id for record in records]
    if not ended:
        return SelectedJobs(tuple(ids))
    results = [await ended_result(client, job_id) for job_id in ids]
    succeeded = tuple(result for result in results if result.success)
    failed = tuple(result for result in results if not result.success)
    return SelectedJobs(tuple(ids), succeeded, failed)


async def _found(client: JobClient, asked: NamedJobs) -> list[JobRecord]:
    """Return the jobs of the trees, or of all trees, with the labels, without their descendants."""
    matching: Iterable[JobRecord] = ()
    if asked.prefixes:
        roots = {await resolve_tree(client, prefix): None for prefix in asked.prefixes}
    else:
        matching = await client.list(labels=asked.labels, limit=MOST_LABELLED)
        roots = {record.root_id: None for record in matching if record.parent_id}
    trees = [await client.tree(root) for root in roots]
    known = {record.id: record for tree in trees for record in tree}
    if asked.prefixes:
        matching = [one for one in known.values() if asked.labels.items() <= one.labels.items()]
    chosen = {record.id for record in matching}
    return [record for record in matching if chosen.isdisjoint(_above(record, known))]


def _above(record: JobRecord, known: Mapping[str, JobRecord]) -> Iterable[str]:
    """Yield the ids of a job's parents."""
    parent = record.parent_id
    while parent:
        yield parent
        above = known.get(parent)
        parent = above.parent_id if above else None


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
            help="Print both sides of the conflicts: those of its landing, and those of its tasks.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the changes of jobs as a patch for `git apply`."""
    if stat and conflicts:
        raise UsageProblem("--stat and --conflicts print different things: leave one of them out.")
    if not (jobs or label or tree):
        jobs = [job_or_last_run(None)]
    asked = parse_named_jobs(jobs, label, tree=tree)
    if conflicts:
        asyncio.run(_conflicts(asked, as_json=as_json))
    else:
        asyncio.run(_diff(asked, stat=stat, as_json=as_json))


async def _conflicts(asked: NamedJobs, *, as_json: bool) -> None:
    kept = Runs(load_settings().state_dir).conflicts
    async with open_client() as client:
        ids = (await select_jobs(client, asked, ended=False)).ids
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


async def _diff(asked: NamedJobs, *, stat: bool, as_json: bool) -> None:
    async with open_client() as client:
        chosen = await select_jobs(client, asked)
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


def landing_conflicts(kept: KeptConflicts, job_id: str) -> list[TaskConflict]:
    """Return the conflicts of a job's landing on this machine."""
    place = kept.place(job_id)
    return [
        TaskConflict(
            job_id,
            file.path,
            file.reason,
            file.left_out or f"whole versions: {place}/{{base,yours,theirs}}/{file.path}",
            difference(file.yours, file.theirs, "yours", "theirs"),
        )
        for file in kept.read(job_id)
    ]


def print_stat(
    files: Sequence[FileChange],
    write: Callable[[str], None] = output.payload,
    most: int | None = None,
    omitted: int = 0,
) -> None:
    """Print the changed files with lines added and removed, the totals, and what is held back.

    Args:
        files: The files.
        write: Prints a line.
        most: The most files that are printed; the others are only counted.
        omitted: Changed files that are not among them.
    """
    named = files[:most]
    width = max((cell_len(_name(change)) for change in named), default=0)
    for change in named:
        lines = "binary" if change.binary else f"+{change.lines_added} -{change.lines_removed}"
        write(f"{padded(_name(change), width)}  {change.change:<8}  {lines}")
    stat = stat_document(files, omitted)
    count = stat["files_changed"]
    if more := count - len(named):
        write(f"… and {more} more")
    lines = f"+{stat['lines_added']} -{stat['lines_removed']}"
    first = f" in the first {len(files)}" if omitted else ""
    write(f"{count} {'file' if count == 1 else 'files'} changed, {lines}{first}")
    for path, reason in held_back_by_name(files).items():
        write(f"held back by a merge: {output.one_line(path)}: {reason}")


def _name(change: FileChange) -> str:
    name = output.one_line(change.path)
    renamed = change.change is ChangeKind.RENAMED and change.from_path
    return f"{output.one_line(change.from_path)} → {name}" if renamed else name


def stat_document(files: Sequence[FileChange], omitted: int = 0) -> dict[str, int]:
    """Return the totals as keys of a JSON document; lines of omitted files are unknown."""
    return {
        "files_changed": len(files) + omitted,
        "lines_added": sum(change.lines_added for change in files),
        "lines_removed": sum(change.lines_removed for change in files),
    }
