"""The picture of jobs at one moment: a line per job, and groups where there are too many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from fanout.orchestrator.cli.terminal import formatting, output
from fanout.orchestrator.cli.terminal.grid import SPILL, STYLES, fitted_titles, fitted_widths
from fanout.orchestrator.jobs.state import JobRecord, JobState

MOST_ASKING = 3
"""Approvals listed below the jobs, each with the command that answers it; `fanout approvals` lists
all."""
MOST_GROUPS = 6
"""Lines about jobs that have none of their own, by state and agent."""
RESERVED_LINES = 5
"""Of the height: for the counts above the jobs, the header, the cursor, more approvals, and more
groups."""
AGENT_CHARACTERS = 11
"""Of an agent's name on a narrow terminal: what its job does is more telling."""
ROOMY = 160
"""Columns of a terminal on which a reason stands in the row of its job."""
WIDE = 200
"""Of a terminal on which every column has room."""

HEADER = ("", "ID", "AGENT", "WHAT", "", "NOW", "TIME", "TOKENS")
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
"""The rank of failures that would leave no line for the jobs that run."""


@dataclass
class Board:
    """The state of the jobs that are shown."""

    records: Sequence[JobRecord] = ()
    tokens: dict[str, int] = field(default_factory=dict)

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
        most = max(1, height - RESERVED_LINES - min(len(asking), MOST_ASKING))
        chosen = self._fitting(most, width)
        shown_ids = {record.id for record in chosen}
        hidden = [record for record in self.records if record.id not in shown_ids]
        lines = [
            Text(formatting.count_states(self.records), style="bold"),
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
        room = width - (len(HEADER) - 1)

        def columns() -> list[int]:
            natural = [
                max(len(name), *(line[column].cell_len for line in cells))
                for column, name in enumerate(HEADER)
            ]
            natural[_TITLE] = max(len(HEADER[_TITLE]), *map(cell_len, titles))
            return fitted_widths(natural, (_TITLE, _NOW), room)

        titles = fitted_titles(titles, columns()[_TITLE])
        widths = columns()  # shorter titles leave more room to what the jobs do
        for line, text in zip(cells, titles, strict=True):
            line[_TITLE] = Text(text)
        rows = [_joined([Text(name, style="bold") for name in HEADER], widths)]
        for record, line in zip(records, cells, strict=True):
            rows.append(_joined(line, widths))
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


def _joined(cells: Sequence[Text], widths: Sequence[int]) -> Text:
    """Return the cells of a row as one line."""
    line = Text()
    for cell, width in zip(cells, widths, strict=True):
        cell.truncate(width, overflow="ellipsis", pad=True)
        line.append_text(cell)
        line.append(" ")
    line.rstrip()
    return line


def _lines(record: JobRecord, width: int) -> int:
    """Return how many lines a job has: why it failed has one of its own on a narrow terminal."""
    return 2 if record.reason and width < ROOMY else 1


def _by_urgency(records: Sequence[JobRecord], most_failures: int, width: int) -> list[JobRecord]:
    """Return the records, those that a person should see first at the beginning.

    Args:
        records: The records.
        most_failures: The number of lines for failures, if others have none.
        width: That of the terminal.
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
    """Return lines about jobs that have none of their own, failures first."""
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
