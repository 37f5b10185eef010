"""The live view: on a terminal a redrawn line per job, elsewhere a line per change of state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.orchestrator.cli.terminal import formatting, output
from fanout.orchestrator.cli.terminal.grid import STYLES
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.failures import JobFailure
from fanout.orchestrator.jobs.state import JobRecord, JobState
from fanout.orchestrator.jobs.store.journal import JournalEvent

POLL_SECONDS = 0.5
"""Between two polls of the jobs: fast enough to watch, and two requests per second for Redis."""
FRAMES_PER_SECOND = 4
MOST_ASKING = 3
"""Approvals listed below the jobs, each with the command that answers it; `fanout approvals` lists
all."""
RESERVED_LINES = 4
"""Of the height: for the counts above and below the jobs, more approvals, the cursor."""
AGENT_CHARACTERS = 11
"""Of an agent's name on a narrow terminal: what its job does is more telling."""
WIDE = 200
"""Of a terminal on which every column has room."""
FOLLOWED_JOBS = 200
"""Jobs whose journals are read for token counts; further jobs are shown without."""

_ELASTIC = (None, None, None, 3, None, 4, None, None)
"""For symbol, id, agent, title, attempt, activity, time and tokens: the columns with a ratio shrink
on a narrow terminal."""

_RANKS = {
    JobState.RUNNING: 1,
    JobState.FAILED: 2,
    JobState.TIMED_OUT: 2,
    JobState.WAITING: 3,
    JobState.QUEUED: 4,
    JobState.CANCELLED: 5,
    JobState.SUCCEEDED: 5,
}

Fetch = Callable[[], Awaitable[Sequence[JobRecord]]]
"""Returns the jobs to show, parents first."""
OnChange = Callable[[JobRecord], None]
OnEvent = Callable[[JobRecord, JournalEvent], None]


@dataclass
class Board:
    """The state of the jobs that are shown."""

    records: Sequence[JobRecord] = ()
    tokens: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    """Why jobs failed, by id."""

    def render(self, height: int, width: int = WIDE) -> RenderableType:
        """Return a table of at most `height` lines, with a count of the jobs that do not fit.

        The most urgent jobs are shown, each below its parents.
        """
        asking = [text for text in map(formatting.asks, self.records) if text]
        more_asking = len(asking) - MOST_ASKING
        asking = asking[:MOST_ASKING]
        if more_asking > 0:
            asking.append(f"{more_asking} more wait for an approval: fanout approvals")
        most = height - RESERVED_LINES - min(len(asking), MOST_ASKING)
        shown_records = self._fitting(max(1, most))
        short = formatting.short_ids(record.id for record in self.records)
        agents = max(AGENT_CHARACTERS, width // 8)
        cells = [self._cells(record, short[record.id], agents) for record in shown_records]
        rows = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0), expand=True)
        for column, ratio in enumerate(_ELASTIC):
            widest = max((line[column].cell_len for line in cells), default=0)
            rows.add_column(
                no_wrap=True, overflow="ellipsis", ratio=ratio, min_width=None if ratio else widest
            )
        for line in cells:
            rows.add_row(*line)
        shown_ids = {record.id for record in shown_records}
        hidden = [record for record in self.records if record.id not in shown_ids]
        below = [_line(text, STYLES["waiting"]) for text in asking]
        if hidden:
            below.insert(0, _line(f"… and {formatting.count_states(hidden)}", "dim"))
        return Group(_line(formatting.count_states(self.records), "bold"), rows, *below)

    def _activity(self, record: JobRecord) -> str:
        return self.reasons.get(record.id) or formatting.doing(record) or record.state

    def _fitting(self, most: int) -> list[JobRecord]:
        """Return the most urgent records with their parents, each below its parent."""
        ordered = formatting.in_tree_order(self.records)
        if len(ordered) <= most:
            return ordered
        by_id = {record.id: record for record in self.records}
        chosen: set[str] = set()
        for record in sorted(ordered, key=_urgency):
            line: JobRecord | None = record
            needed = set()
            while line is not None and line.id not in chosen:
                needed.add(line.id)
                line = by_id.get(line.parent_id or "")
            if len(chosen) + len(needed) <= most:
                chosen |= needed
        return [record for record in ordered if record.id in chosen]

    def _cells(self, record: JobRecord, short_id: str, agents: int) -> list[Text]:
        style = STYLES.get(record.state, "")
        tokens = self.tokens.get(record.id, 0)
        indent = "  " * record.depth
        return [
            Text(f"{indent}{formatting.SYMBOLS[record.state]}", style=style),
            Text(short_id, style="dim"),
            Text(output.one_line(record.agent, agents)),
            Text(formatting.title(record)),
            Text(f"#{record.attempt}" if record.attempt > 1 else "", style="yellow"),
            Text(output.one_line(self._activity(record), 120), style=style),
            Text(formatting.elapsed(record)),
            Text(f"{tokens:,}" if tokens else "", style="dim"),
        ]


def _line(text: str, style: str) -> Text:
    """Return foreign text as one line, which a narrow terminal cuts and does not wrap."""
    return Text(output.one_line(text), style=style, no_wrap=True, overflow="ellipsis")


def _urgency(record: JobRecord) -> int:
    """Return the rank of a job among those that compete for lines: the least is shown first."""
    return 0 if record.approvals else _RANKS[record.state]


class Watcher:
    """Polls jobs, updates the board and reports changes of state."""

    def __init__(
        self,
        client: JobClient,
        fetch: Fetch,
        on_change: OnChange | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        self.board = Board()
        self.failure: JobFailure | None = None
        """The failure of the last poll; None if it succeeded."""
        self._console: Console | None = None
        self._live: Live | None = None
        self._client = client
        self._fetch = fetch
        self._on_change = on_change
        self._on_event = on_event
        self._seen: dict[str, tuple[str, int, tuple[str, ...]]] = {}
        self._followers: dict[str, asyncio.Task[None]] = {}

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Remove the table from the screen while a person is asked a question."""
        console = self._console
        if console is None:
            yield
            return
        self.stop_drawing(erase=True)
        try:
            yield
        finally:
            self.draw(console)

    def draw(self, console: Console) -> None:
        """Draw the table from now on below everything else that is printed on a terminal."""
        self._console = console
        # One that was stopped cannot be started again: it would erase what was printed meanwhile.
        self._live = Live(
            console=console,
            get_renderable=lambda: self.board.render(console.height, console.width),
            refresh_per_second=FRAMES_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start(refresh=True)

    def stop_drawing(self, *, erase: bool = False) -> None:
        """Leave the table on the terminal as it is now, or erase it."""
        if self._live is not None:
            self._live.transient = erase
            self._live.stop()
            self._live = None

    async def poll(self) -> None:
        """Fetch the jobs once and report those whose state changed.

        Raises:
            JobFailure: the jobs cannot be read.
        """
        self.board.records = await self._fetch()
        for record in self.board.records:
            now = (record.state, record.attempt, record.approvals)
            if self._seen.get(record.id) != now and self._on_change is not None:
                self._on_change(record)
            self._seen[record.id] = now
            if record.id not in self._followers and len(self._followers) < FOLLOWED_JOBS:
                self._followers[record.id] = asyncio.create_task(self._read_journal(record))

    async def watch(self) -> None:
        """Poll until cancelled; failures are kept in `failure` and polling continues."""
        while True:
            try:
                await self.poll()
                self.failure = None
            except JobFailure as failure:
                self.failure = failure
            await asyncio.sleep(POLL_SECONDS)

    async def read_to_the_end(self) -> None:
        """Read the rest of the journals, for a short time: jobs have just ended."""
        if self._followers:
            await asyncio.wait(self._followers.values(), timeout=POLL_SECONDS)

    async def close(self) -> None:
        """Stop reading journals."""
        await cancel_and_wait(*self._followers.values())

    async def _read_journal(self, record: JobRecord) -> None:
        job_id = record.id
        with suppress(JobFailure):  # the next poll reports it
            async for event in self._client.events(job_id):
                count = formatting.tokens_of(event)
                self.board.tokens[job_id] = self.board.tokens.get(job_id, 0) + count
                if reason := formatting.failure(event):
                    self.board.reasons[job_id] = reason
                if self._on_event is not None:
                    self._on_event(record, event)


@asynccontextmanager
async def shown(
    client: JobClient,
    fetch: Fetch,
    *,
    console: Console | None = None,
    on_change: OnChange | None = None,
    on_event: OnEvent | None = None,
) -> AsyncIterator[Watcher]:
    """Show jobs while the context is open.

    Args:
        client: reads the journals.
        fetch: returns the jobs to show.
        console: where to draw the table; None draws nothing.
        on_change: called with each job whose state, attempt or approvals changed.
        on_event: called with each event of the jobs' journals, of the first `FOLLOWED_JOBS` jobs.
    """
    watcher = Watcher(client, fetch, on_change, on_event)
    watching = asyncio.create_task(watcher.watch())
    try:
        if console is not None:
            watcher.draw(console)
        yield watcher
        with suppress(JobFailure):
            await watcher.poll()  # reports the final states
            await watcher.read_to_the_end()
    finally:
        watcher.stop_drawing()
        await cancel_and_wait(watching)
        await watcher.close()


def change_line(record: JobRecord) -> str:
    """Format a job's new state as one plain line."""
    attempt = f"#{record.attempt}" if record.attempt > 1 else ""
    title, asks = formatting.title(record), formatting.asks(record)
    parts = (record.id, record.state, attempt, record.agent, title, asks)
    return "  ".join(filter(None, parts))
