"""Polls jobs and shows them: on a terminal as a board, elsewhere as a line per change of state.

The board has a line per job, and groups if there are more jobs than lines.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from math import ceil

from rich.cells import cell_len
from rich.console import Console, Group
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from ...cancellation import cancel_and_wait
from ...client import JobClient
from ...jobs.failures import JobFailure
from ...jobs.state import JobRecord, JobState
from ...jobs.store.journal import JournalEvent
from ...scripts.progress import ScriptReader
from ...shortening import count
from . import formatting, output
from .grid import (
    SPILL,
    STYLES,
    fitted_titles,
    fitted_widths,
    join_cells,
)
from .waiting import (
    MAX_SILENT_SECONDS,
    SILENT_SECONDS,
    speaking,
)

MOST_ASKING = 3
"""The most approvals listed below the jobs, each with the command that answers it; `fanout
approvals` lists all."""
MOST_SCRIPTS = 2
"""The most scripts whose phases are shown above the jobs."""
MOST_PHASES = 4
"""The most phases of one script, the newest ones."""
MOST_GROUPS = 6
"""The most lines about jobs without their own line, by state and agent."""
RESERVED_LINES = 5
"""The lines of the height for the counts above the jobs, the header, the cursor, more approvals,
and more groups."""
AGENT_CHARACTERS = 11
"""The longest name of an agent on a narrow terminal: its job's activity is more important."""
ROOMY = 160
"""The columns of a terminal from which on a reason is in the row of its job."""
WIDE = 200
"""The columns of a terminal on which every column has room."""

HEADER = ("", "ID", "AGENT", "WHAT", "", "NOW", "TIME", "TOKENS")
GAP = 1
"""Spaces between two columns."""
_TITLE, _NOW = 3, 5
"""The columns that shrink on a narrow terminal."""

_RANKS = {
    JobState.FAILED: 1,
    JobState.TIMED_OUT: 1,
    JobState.RUNNING: 2,
    JobState.WAITING: 3,
    JobState.QUEUED: 4,
    JobState.CANCELLED: 5,
    JobState.SUCCEEDED: 5,
}
_LATE_FAILURE = 3
"""The rank of failures for which running jobs would have no line."""
POLL_SECONDS = 0.5
"""Between two polls of the jobs: fast enough to watch, and two requests per second for Redis."""
FRAMES_PER_SECOND = 4
LOOK_SECONDS = 0.25
"""The time between two checks whether a line about jobs' activities is due, if no table is drawn.
"""
MOST_DOING = 3
"""The most jobs that such lines are about."""
FOLLOWED_JOBS = 200
"""The most jobs whose journals are read for token counts; further jobs are shown without."""

Fetch = Callable[[], Awaitable[Sequence[JobRecord]]]
"""Returns the jobs to show, parents first."""
OnChange = Callable[[JobRecord], None]
OnEvent = Callable[[JobRecord, JournalEvent], None]


@dataclass
class Board:
    """The state of the jobs that are shown."""

    records: Sequence[JobRecord] = ()
    tokens: dict[str, int] = field(default_factory=dict)
    scripts: dict[str, ScriptReader] = field(default_factory=dict)
    """How the scripts among the jobs stand, by job."""

    def render(self, height: int, width: int = WIDE) -> Group:
        """Return a picture of at most `height` lines, each at most `width` cells wide.

        When there are more jobs than lines, the most urgent ones are shown, failures first, each
        below its parents, and the others as groups by state and agent.
        """
        asking = [text for text in map(formatting.asks, self.records) if text]
        more_asking = len(asking) - MOST_ASKING
        asking = asking[:MOST_ASKING]
        if more_asking > 0:
            asking.append(f"{more_asking} more wait for an approval: fanout approvals")
        scripts = [
            line
            for script in [*self.scripts.values()][:MOST_SCRIPTS]
            for line in formatting.script_lines(script.progress(), MOST_PHASES)
        ]
        most = max(1, height - RESERVED_LINES - min(len(asking), MOST_ASKING) - len(scripts))
        chosen = self._fitting(most, width)
        shown_ids = {record.id for record in chosen}
        hidden = [record for record in self.records if record.id not in shown_ids]
        lines = [
            Text(formatting.count_states(self.records), style="bold"),
            *map(Text, scripts),
            *self._rows(chosen, width),
            *_groups(hidden),
            *(Text(output.one_line(text), style=STYLES["waiting"]) for text in asking),
        ]
        for line in lines:
            line.truncate(width, overflow="ellipsis")
            line.no_wrap = True
        return Group(*lines)

    def _fitting(self, most: int, width: int) -> list[JobRecord]:
        """Return the most urgent records with their parents, each below its parent."""
        ordered = formatting.in_tree_order(self.records)
        if sum(_lines(record, width) for record in ordered) <= most:
            return ordered
        most -= min(MOST_GROUPS, len({(record.state, record.agent) for record in ordered})) - 1
        by_urgency = _by_urgency(ordered, max(1, most // 2), width)
        by_id = {record.id: record for record in self.records}
        chosen: set[str] = set()
        used = 0
        for record in by_urgency:
            line: JobRecord | None = record
            needed = {}
            while line is not None and line.id not in chosen:
                needed[line.id] = _lines(line, width)
                line = by_id.get(line.parent_id or "")
            if used + sum(needed.values()) <= most:
                chosen |= needed.keys()
                used += sum(needed.values())
        return formatting.in_tree_order([record for record in by_urgency if record.id in chosen])

    def _rows(self, records: Sequence[JobRecord], width: int) -> list[Text]:
        if not records:
            return []
        agents = max(AGENT_CHARACTERS, width // 8)
        cells = [self._cells(record, agents, width) for record in records]
        titles = [formatting.title(record) for record in records]
        room = width - GAP * (len(HEADER) - 1)

        def columns() -> list[int]:
            natural = [
                max(len(name), *(line[column].cell_len for line in cells))
                for column, name in enumerate(HEADER)
            ]
            natural[_TITLE] = max(len(HEADER[_TITLE]), *map(cell_len, titles))
            return fitted_widths(natural, (_TITLE, _NOW), room)

        titles = fitted_titles(titles, columns()[_TITLE])
        widths = columns()  # shorter titles leave more room for the jobs' activities
        for line, text in zip(cells, titles, strict=True):
            line[_TITLE] = Text(text)
        rows = [join_cells([Text(name, style="bold") for name in HEADER], widths, GAP)]
        for record, line in zip(records, cells, strict=True):
            rows.append(join_cells(line, widths, GAP))
            if _lines(record, width) > 1:
                indent = "  " * record.depth
                why = f"{indent}{SPILL}{formatting.reason(record)}"
                rows.append(Text(why, style=STYLES.get(record.state, "")))
        return rows

    def _cells(self, record: JobRecord, agents: int, width: int) -> list[Text]:
        style = STYLES.get(record.state, "")
        tokens = self.tokens.get(record.id, 0)
        indent = "  " * record.depth
        now = record.state if _lines(record, width) > 1 else formatting.doing(record)
        return [
            Text(f"{indent}{formatting.SYMBOLS[record.state]}", style=style),
            Text(formatting.short_id(record.id), style="dim"),
            Text(output.one_line(record.agent, agents)),
            Text(),
            Text(f"#{record.attempt}" if record.attempt > 1 else "", style="yellow"),
            Text(now or record.state, style=style),
            Text(formatting.elapsed(record)),
            Text(f"{tokens:,}" if tokens else "", style="dim"),
        ]


def _lines(record: JobRecord, width: int) -> int:
    """Return how many lines a job has: its failure has its own line on a narrow terminal."""
    return 2 if record.reason and width < ROOMY else 1


def _by_urgency(records: Sequence[JobRecord], most_failures: int, width: int) -> list[JobRecord]:
    """Return the records, sorted by their importance for a person.

    Args:
        records: The records.
        most_failures: The number of lines for failures, if others have none.
        width: The width of the terminal.
    """
    failures = 0

    def rank(record: JobRecord) -> int:
        nonlocal failures
        if record.approvals:
            return 0
        if _RANKS[record.state] == _RANKS[JobState.FAILED]:
            failures += _lines(record, width)
            return _LATE_FAILURE if failures > most_failures else _RANKS[record.state]
        return _RANKS[record.state]

    return sorted(records, key=rank)


def _groups(hidden: Sequence[JobRecord]) -> list[Text]:
    """Return lines about jobs without their own line, failures first."""
    groups: dict[tuple[JobState, str], list[JobRecord]] = {}
    for record in hidden:
        groups.setdefault((record.state, record.agent), []).append(record)
    ordered = sorted(groups, key=lambda group: (_RANKS[group[0]], -len(groups[group])))
    lines = []
    for state, agent in ordered[:MOST_GROUPS]:
        records = groups[state, agent]
        reasons = Counter(filter(None, map(formatting.reason, records)))
        why = f", most often: {reasons.most_common(1)[0][0]}" if reasons else ""
        text = f"{formatting.SYMBOLS[state]} … and {len(records)} more {state}: {agent}{why}"
        lines.append(Text(output.one_line(text), style=STYLES.get(state, "")))
    if rest := [record for group in ordered[MOST_GROUPS:] for record in groups[group]]:
        lines.append(Text(f"… and {formatting.count_states(rest)}", style="dim"))
    return lines


class _Picture:
    """Draws a board at the current size of the terminal.

    A terminal that becomes narrower wraps the lines that it shows, so that the previous picture
    takes more lines than were drawn. These are erased, or they would stay above the next picture.
    """

    def __init__(self, console: Console, board: Board) -> None:
        self._console = console
        self._board = board
        self._size = (console.height, console.width)
        self._drawn: list[int] = []
        self._scrolled = False
        """Whether a part has left the screen at its top. A terminal shows it again when it becomes
        larger; then only the whole screen can be erased."""

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
        """Leave the table on the terminal, or erase it."""
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
        """Print the jobs' activities when nothing was printed for long, if there is no table."""
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
                if record.script is not None:
                    self.board.scripts.setdefault(job_id, ScriptReader()).add(event)
                count = formatting.reply_tokens(event)
                self.board.tokens[job_id] = self.board.tokens.get(job_id, 0) + count
                if self._on_event is not None:
                    self._on_event(record, event)


class _Silence:
    """The time without output, and the lines that are printed then.

    The pauses grow, so that a log of hours stays short; a failed request is reported at once.
    """

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._pause = SILENT_SECONDS
        self._errors: dict[str, str] = {}

    def ends(self) -> None:
        """Begin again: something was printed."""
        self._since, self._pause = time.monotonic(), SILENT_SECONDS

    def lines(self, records: Sequence[JobRecord] | None) -> list[str]:
        """Return a line for each running job, a few at most; none before the pause has passed.

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
        if time.monotonic() - max(self._since, output.last_print_time()) < self._pause:
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
        watcher.stop_drawing(erase=True)  # it would show for ever that jobs run
        raise
    finally:
        watcher.stop_drawing()
        await cancel_and_wait(*tasks)
        await watcher.close()


def doing_line(record: JobRecord) -> str:
    """Format a job's current activity as one plain line."""
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
    """Return a function that fetches the same and stores the newest answer in a list."""

    async def fetched() -> Sequence[JobRecord]:
        seen[:] = await fetch()
        return seen

    return fetched


def still_open(records: Sequence[JobRecord]) -> str:
    """Return how many of the jobs have not ended, in brackets; empty if none is known."""
    still = sum(not record.state.is_terminal for record in records)
    jobs = count(len(records), "job")
    return f" ({still} of {jobs} had not ended)" if records else ""
