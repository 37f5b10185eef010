"""`ps`, `tree`, `show`, `result` and `logs`: print jobs and their events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ...jobs.result import JobResult, Usage, Verification
from ...jobs.state import LIVE_STATES, JobRecord, JobState
from ...scripts.progress import ScriptProgress
from ..terminal import formatting, output
from ..terminal.exit_codes import UsageProblem
from ..terminal.options import AsJson, JobOrLastRun, LabelFilter, parse_labels
from ..terminal.output import print_answer
from ..terminal.session import (
    ended_result,
    job_or_last_run,
    open_reader,
    resolve_job,
    resolve_tree,
)
from ..terminal.waiting import waiting

if TYPE_CHECKING:
    from ...client.job_reader import JobReader

StateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        metavar="STATE",
        help=f"List only jobs in this state ({', '.join(JobState)}); repeat for several.",
    ),
]

LINES_BESIDE_SUMMARY = 3
"""The lines below a summary: the usage, in two lines of a narrow terminal, and a shell's prompt."""

NOW = 5
"""The column of a job's current activity, or of the reason why it failed."""

FOR_PROGRAMS = "error_type"
"""The field of a record that only --json prints: its `reason` says the same in words."""

MAX_SCRIPTS = 20
"""The most scripts of a tree whose phases are listed below it."""
MAX_PHASES = 20
"""The most phases of one script, the newest ones."""

NOTHING_RUNS = "No job is running or waiting; `fanout ps --all` lists those that have ended."


def ps(
    all_: Annotated[
        bool, typer.Option("--all", "-a", help="Also list the jobs that have ended.")
    ] = False,
    state: StateOption = None,
    label: LabelFilter = None,
    limit: Annotated[
        int, typer.Option(min=1, help="List at most this many jobs, oldest first.")
    ] = 1000,
    as_json: AsJson = False,
) -> None:
    """List the running and waiting jobs, and what each waits for."""
    states = _states(state) if state else (None if all_ else LIVE_STATES)
    labels = parse_labels(label)
    asyncio.run(_ps(states, labels, limit, as_json=as_json))


async def _ps(
    states: Collection[JobState] | None, labels: dict[str, str], limit: int, *, as_json: bool
) -> None:
    async with open_reader() as reader:
        if (memory := await reader.memory()).is_short:
            output.notice(memory.warning)
        parts = reader.parts(states=states, labels=labels, limit=limit)
        if as_json:
            with output.list_document("jobs") as add:
                async for part in parts:
                    add(record.model_dump(mode="json") for record in part)
            return
        found, printed = 0, _records_table(indented=False)
        async for part in parts:
            printed(part)
            found += len(part)
    if not found:
        output.notice("No job matches." if labels or states != LIVE_STATES else NOTHING_RUNS)
    if found == limit:
        output.notice(f"There may be more than {limit} jobs; --limit N lists more.")


def tree(
    job: JobOrLastRun = None,
    *,
    summary: Annotated[
        bool,
        typer.Option(
            "--summary",
            help="One screen: failures first, and groups by state and agent of the other jobs.",
        ),
    ] = False,
    limit: Annotated[
        int, typer.Option(min=1, help="List at most this many jobs, the first ones.")
    ] = 1000,
    as_json: AsJson = False,
) -> None:
    """List the jobs of a tree, parents first, with their total usage.

    --summary counts all of them, and --limit does not apply.
    """
    asyncio.run(_tree(job_or_last_run(job), None if summary else limit, as_json=as_json))


async def _tree(prefix: str, limit: int | None, *, as_json: bool) -> None:
    async with open_reader() as reader:
        root_id = await resolve_tree(reader, prefix)
        records = formatting.in_tree_order(await reader.tree(root_id, limit))
        budget, [size] = await reader.budget(root_id), await reader.tree_sizes([root_id])
        scripts = await _scripts(reader, records)
    if size > len(records):
        output.notice(
            f"The tree has {size:,} jobs; these are the first {len(records):,}; --limit N "
            "lists more, --summary groups all of them."
        )
    if as_json:
        jobs = [record.model_dump(mode="json") for record in records]
        shown = {name: one.model_dump(mode="json") for name, one in scripts.items()}
        output.document(
            {
                "jobs": jobs,
                "usage": budget.used.model_dump(mode="json"),
                "budget": budget.model_dump(mode="json", exclude={"used"}),
                **({"scripts": shown} if shown else {}),
            }
        )
    else:
        if limit is None:
            _print_board(records)
        else:
            _records_table(indented=True)(records)
        for job_id, script in scripts.items():
            output.payload(f"\nScript {formatting.short_id(job_id)}")
            for line in formatting.script_lines(script, MAX_PHASES):
                output.payload(f"  {line}")
        output.notice(f"Total: {formatting.used(budget.used)}")
        for line in formatting.budget_lines(budget):
            output.notice(line)


async def _scripts(reader: JobReader, records: Sequence[JobRecord]) -> dict[str, ScriptProgress]:
    """Return how the scripts among these jobs stand, by job."""
    found = [record.id for record in records if record.script is not None][:MAX_SCRIPTS]
    return {job_id: await reader.script_progress(job_id) for job_id in found}


def show(job: JobOrLastRun = None, as_json: AsJson = False) -> None:
    """Print the specification of a job and its current state."""
    asyncio.run(_show(job_or_last_run(job), as_json=as_json))


async def _show(prefix: str, *, as_json: bool) -> None:
    async with open_reader() as reader:
        record = await reader.get(await resolve_job(reader, prefix))
    if as_json:
        output.document(record.model_dump(mode="json"))
        return
    times = ("submitted_at", "started_at", "finished_at")
    counts = ("tasks_failed", "tasks_unmerged")
    left_out = {"phases", "batch", *(name for name in counts if not getattr(record, name))}
    values = {
        name: value
        for name, value in record.model_dump(mode="json", exclude=left_out).items()
        if value not in (None, {}, []) and name != FOR_PROGRAMS
    }
    output.pairs(
        (name, formatting.moment(value) if name in times else formatting.plain_text(value))
        for name, value in values.items()
    )


def result(job: JobOrLastRun = None, as_json: AsJson = False) -> None:
    """Print how a job ended, what it changed, and its answer.

    Exit code 1 if the job has not ended.
    """
    asyncio.run(_result(job_or_last_run(job), as_json=as_json))


async def _result(prefix: str, *, as_json: bool) -> None:
    async with open_reader() as reader:
        found = await ended_result(reader, await resolve_job(reader, prefix))
        with_children = await reader.usage(found.job_id)
    if as_json:
        output.document(output.with_id(found.job_id, found.model_dump(mode="json")))
    else:
        _print_result(found, with_children)


def _print_result(found: JobResult, with_children: Usage) -> None:
    """Print a job's result for people: state, error, usage, changed files, and its answer."""
    files = [
        f"{change.change:<8} {output.one_line(change.path)}" for change in found.files_modified
    ]
    if found.files_omitted:
        files.append(f"and {found.files_omitted:,} more: fanout diff --stat lists all")
    span = formatting.span
    output.pairs(
        [
            ("job", found.job_id),
            ("state", found.state),
            ("error", "\n".join(formatting.failure_lines(found))),
            ("verified", None if found.verified is None else _verified(found.verified)),
            ("sandbox", found.sandbox),
            ("attempts", found.attempts),
            ("time", f"{span(found.execution_seconds)} (queued {span(found.queued_seconds)})"),
            ("usage", formatting.used(found.usage)),
            ("with jobs below", _more(with_children, found.usage)),
            ("context", formatting.summarized(found.context)),
            ("files", "\n".join(files)),
            ("output", None if found.output is None else formatting.plain_text(found.output)),
            ("unread", "\n".join(found.unread_messages)),
            ("not shown", _not_shown(found)),
        ]
    )
    if found.summary.strip():
        output.payload("\nsummary:")
        print_answer(found.summary)


def _not_shown(found: JobResult) -> str:
    names = ", ".join(name.replace("_", " ") for name in found.not_understood)
    return names and f"parts of: {names} (another release of fanout wrote them)"


def _more(total: Usage, own: Usage) -> str | None:
    return formatting.used(total) if total.model_calls > own.model_calls else None


def _verified(run: Verification) -> str:
    """Return a verification in a line, with the end of its output if it failed."""
    line = f"exit code {run.exit_code} after {formatting.span(run.seconds)}: {run.command}"
    return line if run.exit_code == 0 else f"{line}\n{run.output_tail.strip()}"


def logs(
    job: JobOrLastRun = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new events until the job has ended.")
    ] = False,
    after: Annotated[
        str,
        typer.Option(
            metavar="EVENT-ID", help="Print only events after this one (`id` in the JSON output)."
        ),
    ] = "0-0",
    as_json: AsJson = False,
) -> None:
    """Print what a job did: its events, one per line.

    With --json each line is a JSON object.
    """
    asyncio.run(_logs(job_or_last_run(job), after, follow=follow, as_json=as_json))


async def _logs(prefix: str, after: str, *, follow: bool, as_json: bool) -> None:
    async with open_reader() as reader:
        job_id = await resolve_job(reader, prefix)
        short = formatting.short_id(job_id)
        try:
            with waiting(f"waiting for the next event of {short}"):
                async for event in reader.events(job_id, after, follow=follow):
                    if as_json:
                        output.json_line(event.model_dump(mode="json"))
                    else:
                        output.print_line(formatting.event_line(event))
        except asyncio.CancelledError:
            output.notice(
                f"Detached; the job continues. To continue reading: fanout logs -f {short}"
            )
            raise


def _states(texts: Sequence[str]) -> frozenset[JobState]:
    allowed = {str(state) for state in JobState}
    if wrong := [text for text in texts if text not in allowed]:
        raise UsageProblem(f"--state is {wrong[0]!r}; allowed are {', '.join(JobState)}.")
    return frozenset(JobState(text) for text in texts)


def _records_table(*, indented: bool) -> Callable[[Sequence[JobRecord]], None]:
    """Return a function that prints the next jobs of a table, those of a tree indented."""
    add = output.growing_table(
        ("ID", "STATE", "#", "AGENT", "TIME", "NOW", "WHAT"),
        state_column=1,
        elastic=(3, NOW, -1),
        title_column=-1,
    )

    def add_records(records: Sequence[JobRecord]) -> None:
        spill = {row: NOW for row, record in enumerate(records) if record.reason}
        add([_row(record, indented=indented) for record in records], spill)

    return add_records


def _row(record: JobRecord, *, indented: bool) -> tuple[str, ...]:
    title = formatting.title(record)
    return (
        formatting.short_id(record.id),
        record.state,
        str(record.attempt),
        record.agent,
        formatting.elapsed(record),
        formatting.doing(record) or "-",
        "  " * record.depth + title if indented else title,
    )


def _print_board(records: Sequence[JobRecord]) -> None:
    from rich.console import Console  # noqa: PLC0415 - most commands that only read need no rich

    from ..terminal.live_view import Board  # noqa: PLC0415 - the same

    console = Console(highlight=False)
    lines = console.height - LINES_BESIDE_SUMMARY
    console.print(Board(records).render(lines, console.width))
