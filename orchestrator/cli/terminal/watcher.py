"""Polls jobs and shows them: on a terminal as a board, elsewhere as a line per change of state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from math import ceil

from rich.console import Console, Group
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.orchestrator.cli.terminal import formatting, output
from fanout.orchestrator.cli.terminal.board import Board
from fanout.orchestrator.cli.terminal.waiting import (
    MAX_SILENT_SECONDS,
    SILENT_SECONDS,
    speaking,
)
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.failures import JobFailure
from fanout.orchestrator.jobs.state import JobRecord
from fanout.orchestrator.jobs.store.journal import JournalEvent
from fanout.orchestrator.shortening import count

POLL_SECONDS = 0.5
"""Between two polls of the jobs: fast enough to watch, and two requests per second for Redis."""
FRAMES_PER_SECOND = 4
LOOK_SECONDS = 0.25
"""Between two looks, where no table is drawn, whether a line has to say what the jobs do."""
MOST_DOING = 3
"""Jobs that such lines are about."""
FOLLOWED_JOBS = 200
"""Jobs whose journals are read for token counts; further jobs are shown without."""

Fetch = Callable[[], Awaitable[Sequence[JobRecord]]]
"""Returns the jobs to show, parents first."""
OnChange = Callable[[JobRecord], None]
OnEvent = Callable[[JobRecord, JournalEvent], None]


class _Picture:
    """Draws a board at the size that the terminal has now.

    A terminal that becomes narrower wraps the lines that it shows, so that the picture before takes
    more lines than were drawn. These are erased, or they would stay above the next picture.
    """

    def __init__(self, console: Console, board: Board) -> None:
        self._console = console
        self._board = board
        self._size = (console.height, console.width)
        self._drawn: list[int] = []
        self._scrolled = False
        """Whether a part has left the screen at its top: a terminal brings it back when it becomes
        larger, where nothing but the whole screen can be erased."""

    def render(self) -> Group:
        """Return the picture of this moment."""
        height, columns = size = (self._console.height, self._console.width)
        if size != self._size:
            self._erase(height, columns)
        lines = self._board.render(height, columns)
        self._size = size
        self._drawn = [line.cell_len for line in lines.renderables if isinstance(line, Text)]
        return lines

    def _erase(self, height: int, columns: int) -> None:
        wrapped = sum(max(1, ceil(cells / columns)) for cells in self._drawn)
        if self._scrolled:
            self._console.control(Control(ControlType.CLEAR, ControlType.HOME))
        else:  # `Live` erases one line for each that was drawn
            erase = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1))
            self._console.control(Control(*erase * (wrapped - len(self._drawn))))
        self._scrolled = self._scrolled or wrapped > height


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
        self._silence = _Silence()
        self._is_up_to_date = False

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
        picture = _Picture(console, self.board)
        # One that was stopped cannot be started again: it would erase what was printed meanwhile.
        self._live = Live(
            console=console,
            get_renderable=picture.render,
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
                self._silence.ends()
            self._seen[record.id] = now
            if record.id not in self._followers and len(self._followers) < FOLLOWED_JOBS:
                self._followers[record.id] = asyncio.create_task(self._read_journal(record))

    async def say_what_jobs_do(self) -> None:
        """Print what the jobs do, whenever nothing was printed for long; for where no table is."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            records = self.board.records if self._is_up_to_date else None
            for line in self._silence.lines(records):
                output.notice(line)

    async def watch(self) -> None:
        """Poll until cancelled; failures are kept in `failure` and polling continues."""
        while True:
            try:
                await self.poll()
                self.failure, self._is_up_to_date = None, True
            except JobFailure as failure:
                self.failure, self._is_up_to_date = failure, False
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
                if self._on_event is not None:
                    self._on_event(record, event)


class _Silence:
    """How long nothing was printed, and what is to be printed then.

    The pauses grow, so that a log of hours stays short; a failed request is news at once.
    """

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._pause = SILENT_SECONDS
        self._errors: dict[str, str] = {}

    def ends(self) -> None:
        """Begin again: something was printed."""
        self._since, self._pause = time.monotonic(), SILENT_SECONDS

    def lines(self, records: Sequence[JobRecord] | None) -> list[str]:
        """Return a line for each job that is at work, a few at most; none before its time.

        Args:
            records: The jobs; None: Redis does not answer.
        """
        if records is None:
            return ["Still waiting for Redis"] if self._is_time() else []
        live = [record for record in records if not record.state.is_terminal]
        busy = [record for record in live if record.activity is not None] or live[:1]
        failed = [record for record in busy if self._is_news(record)]
        if failed:
            self.ends()
            return [doing_line(record) for record in failed[:MOST_DOING]]
        if not self._is_time():
            return []
        if not busy:
            return ["Still waiting for jobs: none is open"]
        more = len(busy) - MOST_DOING
        rest = [f"… and {more} more jobs at work"] if more > 0 else []
        return [*(f"Still {doing_line(record)}" for record in busy[:MOST_DOING]), *rest]

    def _is_time(self) -> bool:
        """Return whether nothing was printed for the pause, which then becomes longer."""
        if time.monotonic() - max(self._since, output.printed_at()) < self._pause:
            return False
        self._since = time.monotonic()
        self._pause = min(2 * self._pause, MAX_SILENT_SECONDS)
        return True

    def _is_news(self, record: JobRecord) -> bool:
        at_work = record.activity
        error = f"{at_work.attempt} {at_work.error}" if at_work and at_work.error else ""
        before, self._errors[record.id] = self._errors.get(record.id, ""), error
        return bool(error) and error != before


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
    tasks = [asyncio.create_task(watcher.watch())]
    try:
        if console is not None:
            watcher.draw(console)
        elif on_change is not None:
            tasks.append(asyncio.create_task(watcher.say_what_jobs_do()))
        with speaking():
            yield watcher
            with suppress(JobFailure):
                await watcher.poll()  # reports the final states
                await watcher.read_to_the_end()
    except BaseException:
        watcher.stop_drawing(erase=True)  # it would say for ever that jobs run
        raise
    finally:
        watcher.stop_drawing()
        await cancel_and_wait(*tasks)
        await watcher.close()


def doing_line(record: JobRecord) -> str:
    """Format what a job does at this moment as one plain line."""
    short = formatting.short_id(record.id)
    return "  ".join(filter(None, (record.state, short, record.agent, formatting.doing(record))))


def change_line(record: JobRecord) -> str:
    """Format a job's new state as one plain line."""
    attempt = f"#{record.attempt}" if record.attempt > 1 else ""
    why = formatting.asks(record) or formatting.reason(record)
    parts = (
        formatting.short_id(record.id),
        record.state,
        attempt,
        record.agent,
        formatting.title(record),
        why,
    )
    return "  ".join(filter(None, parts))


def print_change(record: JobRecord) -> None:
    """Print a job's new state on stderr."""
    output.notice(change_line(record))


def remembered(fetch: Fetch, seen: list[JobRecord]) -> Fetch:
    """Return a function that fetches the same and leaves the newest answer in a list."""

    async def fetched() -> Sequence[JobRecord]:
        seen[:] = await fetch()
        return seen

    return fetched


def still_open(records: Sequence[JobRecord]) -> str:
    """Return how many of the jobs have not ended, in brackets; empty if none is known."""
    still = sum(not record.state.is_terminal for record in records)
    jobs = count(len(records), "job")
    return f" ({still} of {jobs} had not ended)" if records else ""
