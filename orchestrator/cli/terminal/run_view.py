"""What a person sees of a run while it works: its live tree, its root agent's words and calls."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from rich.console import Console
from rich.text import Text

from orchestrator.cancellation import cancel_and_wait
from orchestrator.cli.terminal import formatting, output
from orchestrator.cli.terminal.approval_prompt import answer_approvals
from orchestrator.cli.terminal.live import Fetch, change_line, shown
from orchestrator.client import JobClient
from orchestrator.jobs.failures import JobFailure
from orchestrator.jobs.result import JobResult
from orchestrator.jobs.state import JobRecord
from orchestrator.jobs.store.journal import EventType, JournalEvent

CALL_CHARACTERS = 100
"""A tool call is shown in one line of a terminal."""


async def follow(client: JobClient, root_id: str, *, yes: bool) -> JobResult:
    """Show a run until its root job has ended, answer its approvals, and return the result.

    On a terminal a live tree is drawn, elsewhere a line is printed for each change. An interruption
    ends the view and not the run.

    Args:
        client: The connected client.
        root_id: The run's root job.
        yes: Approve the root job's own calls without asking.

    Raises:
        UnknownJob: The job does not exist.
    """
    console = Console(stderr=True) if output.stderr_is_terminal() else None
    on_change = _print_change if console is None else None
    try:
        async with shown(
            client,
            tree_of(client, root_id),
            console=console,
            on_change=on_change,
            on_event=lambda record, event: _print_setback(record, event, console),
        ) as watcher:
            words = asyncio.create_task(_print_words(client, root_id, console))
            asking = asyncio.create_task(
                answer_approvals(
                    client,
                    root_id,
                    yes=yes,
                    set_aside=watcher.set_aside,
                    jobs=lambda: {record.id for record in watcher.board.records},
                )
            )
            try:
                result = await client.wait(root_id)
                with suppress(JobFailure):
                    await words
                return result
            finally:
                await cancel_and_wait(words, asking)
    except asyncio.CancelledError:
        output.notice(
            f"Detached; the run goes on. To look again: fanout attach {root_id}"
            f" · to end it: fanout cancel {root_id}"
        )
        raise


def tree_of(client: JobClient, job_id: str) -> Fetch:
    """Return a function that fetches the jobs of a tree."""

    async def fetch() -> list[JobRecord]:
        return await client.tree(job_id)

    return fetch


async def _print_words(client: JobClient, root_id: str, console: Console | None) -> None:
    """Print the texts and the calls of the root agent; its last text is the command's payload."""
    held = ""
    async for event in client.events(root_id):
        if event.type is EventType.MODEL_REPLY:
            _print(held, "", console)
            held = output.printable(str(event.data.get("text", ""))).strip()
        elif event.type is EventType.TOOL_CALL:
            _print(held, "", console)
            held = ""
            _print(f"→ {_call_line(event)}", "dim", console, one_line=True)


def _print_setback(record: JobRecord, event: JournalEvent, console: Console | None) -> None:
    """Say why work is sent back or left out, or why a job other than the root has failed."""
    if event.type is EventType.CHILD_LANDED and (reason := event.data.get("reason")):
        what = {"in": "landed", "out": "left out"}.get(str(event.data.get("outcome")), "sent back")
        line = f"↩ {event.data['id']}: {what}: {output.one_line(str(reason), 300)}"
        _print(line, "yellow", console)
    elif event.type is EventType.VERIFY and "children" in event.data:
        tasks = formatting.verified_tasks(event.data)
        _print(f"{record.agent} {record.id}: {tasks}", "dim", console)
    elif event.type is EventType.VERIFY and event.data.get("exit_code"):
        command = output.one_line(str(event.data["command"]), CALL_CHARACTERS)
        line = f"↩ {record.agent} {record.id}: sent back, because this failed: {command}"
        _print(line, "yellow", console)
    elif record.parent_id and (reason := formatting.failure(event)):
        _print(f"✗ {record.agent} {record.id}: {output.one_line(reason, 300)}", "red", console)


def _call_line(event: JournalEvent) -> str:
    given = event.data.get("arguments")
    arguments = given if isinstance(given, dict) else {}
    first = arguments.get("description") or next(iter(arguments.values()), "")
    text = f"{event.data['tool']} {first}" if isinstance(first, str) else str(event.data["tool"])
    return output.one_line(text, CALL_CHARACTERS)


def _print(line: str, style: str, console: Console | None, *, one_line: bool = False) -> None:
    if not line:
        return
    if console is None:
        output.notice(line)
    else:
        console.print(Text(line, style=style), no_wrap=one_line, overflow="ellipsis")


def _print_change(record: JobRecord) -> None:
    output.notice(change_line(record))
