"""`wait` and `watch`, and the waiting of other commands for jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import reduce
from typing import Annotated, Any

import typer
from rich.console import Console

from ...cancellation import cancel_and_wait
from ...client import JobClient
from ...jobs.result import JobResult, Usage
from ...jobs.state import LIVE_STATES, JobRecord
from ...shortening import count
from ..failure_report import exit_code_of_results
from ..terminal import formatting, output
from ..terminal.exit_codes import ExitCode
from ..terminal.live_view import (
    POLL_SECONDS,
    Fetch,
    OnChange,
    change_line,
    print_change,
    remembered,
    shown,
    still_open,
)
from ..terminal.options import AsJson, JobsOrLastRun, TimeoutOption
from ..terminal.output import print_answer
from ..terminal.run_view import fetch_tree
from ..terminal.session import (
    job_or_last_run,
    open_client,
    resolve_jobs,
    resolve_tree,
)

MAX_ENDED = 1_000
"""The most ended jobs that a watch of all jobs still shows: more than a screen, for a watch of
days."""
READ_AT_ONCE = 500
"""The records in one round trip."""


def wait(
    jobs: JobsOrLastRun = None, timeout: TimeoutOption = None, as_json: AsJson = False
) -> None:
    """Wait until jobs have ended; print how, and their answers.

    Exit code 1 if one failed or was cancelled, 5 if the waiting time or a job's own time ran out.
    """
    raise typer.Exit(asyncio.run(_wait(jobs or [job_or_last_run(None)], timeout, as_json=as_json)))


async def _wait(
    prefixes: Sequence[str], timeout_seconds: float | None, *, as_json: bool
) -> ExitCode:
    async with open_client() as client:
        ids = await resolve_jobs(client, prefixes)
        results = await wait_for_all(client, ids, timeout_seconds=timeout_seconds)
        usage = await usage_of_trees(client, ids)
    if as_json:
        output.document(ends_document(results, usage))
        return exit_code_of_results(results)
    return print_ends(results, usage)


async def wait_for_all(
    client: JobClient, ids: Sequence[str], *, timeout_seconds: float | None
) -> list[JobResult]:
    """Wait for jobs and return their results in the order of the ids.

    A live view is drawn if stderr is a terminal; else it gets a line for each change. An
    interruption leaves the jobs running and prints the command to wait again.

    Args:
        client: the connected client.
        ids: full job ids.
        timeout_seconds: how long to wait; None for no limit.

    Raises:
        TimeoutError: not all jobs ended in time; the message has their number.
        UnknownJob: there is no such job.
    """
    seen: list[JobRecord] = []
    waits = [asyncio.create_task(client.wait(job_id)) for job_id in ids]
    try:
        async with _make_view(client, ids, seen), asyncio.timeout(timeout_seconds):
            return list(await asyncio.gather(*waits))
    except TimeoutError:
        done = sum(task.done() and not task.cancelled() for task in waits)
        raise TimeoutError(
            f"{done} of {count(len(ids), 'job')} ended within {timeout_seconds:g} s; the "
            f"{'job continues' if len(ids) == 1 else 'others continue'}."
        ) from None
    except asyncio.CancelledError:
        output.notice(
            f"Detached; the view ended, the jobs continue{still_open(seen)}. "
            f"To wait again: fanout wait {_some(ids)}"
        )
        raise
    finally:
        await cancel_and_wait(*waits)


def _make_view(
    client: JobClient, ids: Sequence[str], seen: list[JobRecord]
) -> AbstractAsyncContextManager[object]:
    console = live_console()
    fetch = remembered(_read_records(client, ids), seen)
    if console is not None:
        return shown(client, fetch, console=console)
    return shown(client, fetch, on_change=_changes_printer())


def _changes_printer() -> OnChange:
    """Return a function that prints changes of jobs that had not ended when they were first seen.

    The ends of the others are the command's result.
    """
    were_open: set[str] = set()

    def print_if_open(record: JobRecord) -> None:
        if record.id in were_open or not record.state.is_terminal:
            were_open.add(record.id)
            print_change(record)

    return print_if_open


async def usage_of_trees(client: JobClient, ids: Sequence[str]) -> Usage:
    """Return the usage of all jobs of the trees of these jobs."""
    roots = {(await client.get(job_id)).root_id for job_id in ids}
    return reduce(Usage.plus, [await client.tree_usage(root) for root in roots], Usage())


def ends_document(results: Sequence[JobResult], usage: Usage) -> dict[str, Any]:
    """Return how jobs ended as keys of a JSON document."""
    documents = [
        output.with_id(result.job_id, result.model_dump(mode="json")) for result in results
    ]
    # Earlier releases named the list "results".
    return {"jobs": documents, "results": documents, "usage": usage.model_dump(mode="json")}


def submitted_document(ids: Sequence[str]) -> dict[str, Any]:
    """Return the ids of jobs that were just submitted as keys of a JSON document."""
    # Earlier releases named the list "job_ids".
    one = {"id": ids[0]} if len(ids) == 1 else {}
    return {**one, "jobs": [{"id": job_id} for job_id in ids], "job_ids": list(ids)}


def print_ends(results: Sequence[JobResult], usage: Usage) -> ExitCode:
    """Print how each job ended, and its answer; return the exit code for the results."""
    for result in results:
        output.payload(formatting.ended_line(result))
        print_answer(result.summary)
        for line in formatting.failure_lines(result)[1:]:
            output.notice(line)
    seconds = max((result.execution_seconds for result in results), default=0)
    output.notice(f"Total: {formatting.used(usage, seconds)}")
    return exit_code_of_results(results)


def watch(
    job: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="A job; its whole tree is shown. Default: all jobs."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a live view of a tree until all its jobs have ended.

    Without an ID all jobs are shown, until Ctrl-C; the jobs continue. Without a terminal, and with
    --json, a line is printed whenever a job's state changes.
    """
    asyncio.run(_watch(job, as_json=as_json))


async def _watch(prefix: str | None, *, as_json: bool) -> None:
    async with open_client() as client:
        job_id = None if prefix is None else await resolve_tree(client, prefix)
        fetch = _everything(client) if job_id is None else fetch_tree(client, job_id)
        is_live = output.stdout_is_terminal() and not as_json
        report = _print_json if as_json else _print_change
        seen: list[JobRecord] = []
        try:
            async with shown(
                client,
                remembered(fetch, seen),
                console=Console() if is_live else None,
                on_change=None if is_live else report,
            ) as watcher:
                while job_id is None or not _all_ended(watcher.board.records):
                    await asyncio.sleep(POLL_SECONDS)
                    if watcher.failure is not None:
                        raise watcher.failure
        except asyncio.CancelledError:
            output.notice(f"Detached; the view ended, the jobs continue{still_open(seen)}.")
            raise


def live_console() -> Console | None:
    """Return a console on stderr for a live view; None without a terminal."""
    return Console(stderr=True) if output.stderr_is_terminal() else None


def _print_change(record: JobRecord) -> None:
    output.print_line(change_line(record))


def _print_json(record: JobRecord) -> None:
    output.json_line(record.model_dump(mode="json"))


def _all_ended(records: Sequence[JobRecord]) -> bool:
    return bool(records) and all(record.state.is_terminal for record in records)


def _read_records(client: JobClient, ids: Sequence[str]) -> Fetch:
    wanted = frozenset(ids)
    trees: dict[str, Fetch] = {}

    async def fetch() -> list[JobRecord]:
        if not trees:
            roots = [await client.root(job_id) for job_id in ids]
            trees.update({root: fetch_tree(client, root) for root in roots})
        found = [await tree() for tree in trees.values()]
        return [record for tree in found for record in tree if record.id in wanted]

    return fetch


def _everything(client: JobClient) -> Fetch:
    """Fetch the jobs that have not ended and those that ended since the watch began, the newest."""
    seen: dict[str, JobRecord] = {}

    async def fetch() -> list[JobRecord]:
        live = await client.list(states=LIVE_STATES)
        now = {record.id: record for record in live}
        before = [one for one, record in seen.items() if not record.state.is_terminal]
        gone = [job_id for job_id in before if job_id not in now]
        for first in range(0, len(gone), READ_AT_ONCE):
            records = await client.records(gone[first : first + READ_AT_ONCE])
            now |= {record.id: record for record in records}
        seen.update(now)
        ended = sorted(job_id for job_id, record in seen.items() if record.state.is_terminal)
        for job_id in ended[: max(0, len(ended) - MAX_ENDED)]:
            del seen[job_id]
        return [seen[job_id] for job_id in sorted(seen)]

    return fetch


def _some(ids: Sequence[str]) -> str:
    most = 5
    return " ".join(map(formatting.short_id, ids[:most])) + (" …" if len(ids) > most else "")
