"""`history`: past runs with goal, outcome, cost and how to continue."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ...client.job_reader import PastRun
from ...jobs.state import JobState
from ...shortening import count
from ..terminal import formatting, output
from ..terminal.options import AsJson
from ..terminal.session import open_reader, resolve_tree

USUAL_RUNS = 20
"""The usual number of runs in one list: a screen."""
OUTCOME = 5
"""The column of how a run ended."""
MOST_RUNS = 1000
"""The most runs in one list: each needs its own round trips."""


def history(
    limit: Annotated[
        int, typer.Option(min=1, max=MOST_RUNS, help="List at most this many, newest first.")
    ] = USUAL_RUNS,
    before: Annotated[
        str | None,
        typer.Option(metavar="ID", help="List those before this one: the next page."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List past runs: goal, outcome, cost, and how to continue.

    A run is a tree of jobs: a root job with all below it, or the jobs of one `fanout submit`. Runs
    are listed as long as their records are kept.
    """
    asyncio.run(_history(limit, before, as_json=as_json))


async def _history(limit: int, before: str | None, *, as_json: bool) -> None:
    async with open_reader() as reader:
        if before is not None:
            before = await resolve_tree(reader, before)
        runs = await reader.past_runs(limit + 1, before)
    has_more, runs = len(runs) > limit, runs[:limit]
    if as_json:
        more = runs[-1].root_id if has_more else None
        output.document({"runs": [_document(run) for run in runs], "before": more})
        return
    if not runs:
        output.notice("No run is known; `fanout run GOAL` starts one.")
        return
    _print(runs)
    if any(_has_ended(run) for run in runs):
        output.notice('To continue one: fanout run --continue ID "…"')
    if has_more:
        output.notice(
            f"Older ones: fanout history --before {formatting.short_id(runs[-1].root_id)}"
        )


def _print(runs: Sequence[PastRun]) -> None:
    shorten = output.stdout_is_terminal()
    begin = len("2026-") if shorten else 0
    rows = [
        (
            formatting.short_id(run.root_id),
            formatting.moment(run.first.submitted_at if run.first else None)[begin : -len(":00")],
            formatting.elapsed(run.first) if run.first else "",
            str(sum(run.states.values())),
            formatting.cost(run.usage),
            _outcome(run),
            formatting.title(run.first) if run.first else "",
        )
        for run in runs
    ]
    header = ("ID", "SUBMITTED", "TIME", "JOBS", "COST", "OUTCOME", "GOAL")
    failed = {row: OUTCOME for row, run in enumerate(runs) if run.first and run.first.reason}
    output.table(header, rows, elastic=(OUTCOME, -1), title_column=-1, spill=failed)


def _outcome(run: PastRun) -> str:
    """Return how a run ended, or its current activity, with the number of its failed jobs."""
    failed = run.states.get(JobState.FAILED, 0) + run.states.get(JobState.TIMED_OUT, 0)
    if run.first is None or run.first.id != run.root_id or run.first.state.is_terminal is False:
        return formatting.states(run.states)
    record = run.first
    own = record.state in {JobState.FAILED, JobState.TIMED_OUT}
    jobs = count(sum(run.states.values()), "job")
    more = f", {failed - own} of {jobs} failed" if failed > own else ""
    why = f": {formatting.reason(record)}" if record.reason else ""
    return f"{record.state}{more}{why}"


def _has_ended(run: PastRun) -> bool:
    return run.first is not None and run.first.state.is_terminal


def _document(run: PastRun) -> dict[str, Any]:
    first = run.first
    return {
        "id": run.root_id,
        "root_id": run.root_id,
        "agent": first.agent if first else None,
        "goal": first.description if first else None,
        "title": formatting.title(first) if first else None,
        "labels": first.labels if first else {},
        "state": first.state if first else None,
        "reason": first.reason if first else None,
        "submitted_at": first.submitted_at if first else None,
        "finished_at": first.finished_at if first else None,
        "jobs": dict(run.states),
        "usage": run.usage.model_dump(mode="json"),
        "next": _next(run),
    }


def _next(run: PastRun) -> str | None:
    """Return the command that continues a run."""
    if run.first is None:
        return None
    if run.first.state.is_terminal:
        return f"fanout run --continue {run.first.id}"
    return f"fanout attach {run.first.id}"
