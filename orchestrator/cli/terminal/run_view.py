"""The live view of a run: its tree, and its root agent's words and calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from rich.console import Console
from rich.text import Text

from ...cancellation import cancel_and_wait
from ...client import JobClient
from ...jobs.failures import JobFailure
from ...jobs.result import JobResult
from ...jobs.state import JobRecord
from ...jobs.store.journal import EventType, JournalEvent
from ...scripts.progress import log_lines
from . import formatting, output
from .live_view import (
    Fetch,
    Watcher,
    print_change,
    remembered,
    shown,
    still_open,
)
from .questions import answer_approvals

CALL_CHARACTERS = 100
"""The longest text of a tool call: one line of a terminal."""
LOG_CHARACTERS = 300
"""The longest log line of a script."""
MOST_CALLS = 8
"""The most calls of one tool in a row that are shown: the tree shows three hundred tasks."""


async def follow(client: JobClient, root_id: str, *, yes: bool) -> JobResult:
    """Show a run until its root job has ended, answer its approvals, and return the result.

    On a terminal a live tree is drawn, elsewhere a line is printed for each change. An interruption
    ends the view and not the run.

    Args:
        client: The connected client.
        root_id: The run's root job.
        yes: Approve the calls of the run's jobs without asking.

    Raises:
        UnknownJob: The job does not exist.
    """
    console = Console(stderr=True) if output.stderr_is_terminal() else None
    lines = _Lines(console)
    seen: list[JobRecord] = []
    on_change = print_change if console is None else None
    try:
        async with shown(
            client,
            remembered(fetch_tree(client, root_id), seen),
            console=console,
            on_change=on_change,
            on_event=lambda record, event: _print_setback(record, event, lines),
        ) as watcher:
            words = asyncio.create_task(_print_words(client, root_id, lines))
            asking = asyncio.create_task(
                answer_approvals(
                    client,
                    root_id,
                    yes=yes,
                    set_aside=lambda: _only_question(watcher, lines),
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
        short = formatting.short_id(root_id)
        output.notice(
            f"Detached; the view ended, the run continues{still_open(seen)}."
            f"\n  To look again: fanout attach {short}\n  To end it: fanout cancel {short}"
        )
        raise


def fetch_tree(client: JobClient, job_id: str) -> Fetch:
    """Return a function that fetches the jobs of a tree."""
    return client.growing_tree(job_id).read


class _Lines:
    """Prints lines above the live tree, or on stderr if there is none.

    Args:
        console: The terminal; None for none.
    """

    def __init__(self, console: Console | None) -> None:
        self._console = console
        self._held: list[Callable[[], None]] | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold lines back during a question: they would come between question and answer."""
        self._held = []
        try:
            yield
        finally:
            held, self._held = self._held, None
            for write in held:
                write()

    def write(self, line: str, style: str = "", *, one_line: bool = False) -> None:
        """Print a line; on a terminal it is wrapped between words, or cut if it is to be one."""
        if not line:
            return
        if self._console is None:
            write = partial(output.notice, line)
        else:
            text = Text(output.printable(line), style=style)
            write = partial(self._console.print, text, no_wrap=one_line, overflow="ellipsis")
        if self._held is None:
            write()
        else:
            self._held.append(write)


@contextmanager
def _only_question(watcher: Watcher, lines: _Lines) -> Iterator[None]:
    """Show nothing but a question while the context is open."""
    with watcher.set_aside(), lines.held():
        yield


async def _print_words(client: JobClient, root_id: str, lines: _Lines) -> None:
    """Print the texts and the calls of the root agent, or the phases and the log of its script.

    An agent's last text is the command's payload.

    Of many calls of one tool in a row, the first are printed and the others counted.
    """
    held, tool, calls = "", "", 0
    async for event in client.events(root_id):
        _print_script(event, lines)
        if event.type is EventType.TOOL_CALL and event.data["tool"] == tool:
            calls += 1
        elif event.type in {EventType.TOOL_CALL, EventType.TOOL_RESULT, EventType.MODEL_REPLY}:
            if calls > MOST_CALLS:
                lines.write(f"→ {output.one_line(tool)}: {calls - MOST_CALLS} more", "dim")
            tool, calls = str(event.data.get("tool", "")), 1
        if event.type is EventType.MODEL_REPLY:
            lines.write(held)
            held = str(event.data.get("text", "")).strip()
        elif event.type is EventType.TOOL_CALL:
            lines.write(held)
            held = ""
            if calls <= MOST_CALLS:
                lines.write(f"→ {_call_line(event)}", "dim", one_line=True)


def _print_script(event: JournalEvent, lines: _Lines) -> None:
    """Print what a script says: its phases, and its log."""
    if event.type is EventType.SCRIPT_PHASE:
        lines.write(f"■ {output.one_line(str(event.data.get('name')), CALL_CHARACTERS)}", "bold")
    elif event.type is EventType.SCRIPT_LOG:
        for line in log_lines(event.data):
            lines.write(f"  {output.one_line(line, LOG_CHARACTERS)}")
    elif event.type is EventType.SCRIPT_RESULT and not event.data.get("ok"):
        label = output.one_line(str(event.data.get("label")), CALL_CHARACTERS)
        lines.write(f"✗ {label}", "red")


def _print_setback(record: JobRecord, event: JournalEvent, lines: _Lines) -> None:
    """Print why work is returned or left out, or why a job other than the root has failed."""
    who = f"{record.agent} {formatting.short_id(record.id)}"
    if event.type is EventType.CHILD_LANDED and (reason := event.data.get("reason")):
        why = output.one_line(str(reason), 300)
        line = {"in": f"landed: {why}", "out": f"left out: {why}"}.get(
            str(event.data.get("outcome")), f"{why.removesuffix('.')}; returned to its agent"
        )
        lines.write(f"↩ {formatting.short_id(str(event.data['id']))}: {line}", "yellow")
    elif event.type is EventType.VERIFY and "children" in event.data:
        lines.write(f"{who}: {formatting.verified_tasks(event.data)}", "dim")
    elif event.type is EventType.VERIFY and event.data.get("exit_code"):
        command = output.one_line(str(event.data["command"]), CALL_CHARACTERS)
        line = f"↩ {who}: the answer was returned, because this fails: {command}"
        lines.write(line, "yellow")
    elif record.parent_id and (reason := formatting.failure(event)):
        lines.write(f"✗ {who}: {output.one_line(reason, 300)}", "red")


def _call_line(event: JournalEvent) -> str:
    given = event.data.get("arguments")
    arguments = given if isinstance(given, dict) else {}
    first = arguments.get("description") or next(iter(arguments.values()), "")
    text = f"{event.data['tool']} {first}" if isinstance(first, str) else str(event.data["tool"])
    return output.one_line(text, CALL_CHARACTERS)
