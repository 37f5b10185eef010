"""The picture of an installation for `fanout top`: always on one screen."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from ...client.fleet_view import FleetView, ShownBudget, ShownModel
from ...jobs.store.model_states import trial_time
from ...shortening import count
from . import formatting, output
from .grid import STYLES, fitted_widths, join_cells

GAP = 2
"""Spaces between two columns."""
LEAST_LINES = 2
"""The least lines of each table with rows on a low screen: its header and a row."""
ROOMY_LINES = 15
"""The lines below the summary from which on there are empty lines between the tables."""
MOST_SHARE = 4
"""The divisor for the lines of workers and queues: each takes a fourth at most, so that most lines
are for the jobs."""
FITNESS_STYLES = {"fit": "green", "draining": "yellow", "unfit": "red"}
NAME_CHARACTERS = 40
"""The longest name of a host, a worker, a tenant or an agent."""
MEBIBYTE = 1024 * 1024
ALARMING = 0.9
"""The part of Redis's memory from which on it is drawn in red; from a tenth less, in yellow."""


class Table:
    """A table of the screen.

    Args:
        header: The titles of its columns.
        rows: The cells of each row, all of which are made one printable line.
        elastic: The columns that are shortened on a narrow screen.
        styles: The style of each row; empty for none.
        right: The columns of numbers.
    """

    def __init__(
        self,
        header: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        elastic: Sequence[int],
        styles: Sequence[str] = (),
        right: Sequence[int] = (),
    ) -> None:
        self.header = header
        self.rows = [[output.one_line(cell) for cell in row] for row in rows]
        self.elastic = elastic
        self._styles = styles
        self._right = right

    def lines(self, most: int, width: int, what: str) -> list[Text]:
        """Return the header and the first rows.

        Args:
            most: The number of lines at most.
            width: Cells of a line.
            what: The name of the rows, for the number of those without a line.
        """
        if not self.rows or most < LEAST_LINES:
            return []
        is_cut = len(self.rows) >= most > LEAST_LINES
        shown = self.rows[: most - 1 - is_cut]
        cells = [self.header, *shown]
        natural = [max(cell_len(row[at]) for row in cells) for at in range(len(self.header))]
        widths = fitted_widths(natural, self.elastic, width - GAP * (len(natural) - 1))
        styles = ["bold", *(self._styles or [""] * len(shown))]
        lines = [
            join_cells(list(map(Text, row)), widths, GAP, style=style, right=self._right)
            for row, style in zip(cells, styles, strict=False)
        ]
        if is_cut:
            lines.append(Text(f"… and {len(self.rows) - len(shown):,} more {what}", style="dim"))
        return lines


def tables(view: FleetView, workers_at_most: int | None = None) -> dict[str, Table]:
    """Return the tables of a view, by the names of their rows.

    Args:
        view: The installation.
        workers_at_most: The number above which hosts are listed instead of workers; None: hosts are
            never listed.
    """
    found = {}
    if view.workers:
        is_long = workers_at_most is not None and len(view.workers) > workers_at_most
        key = "hosts" if is_long else "workers"
        found[key] = _hosts(view) if is_long else _workers(view)
    if view.models:
        found["models"] = _models(view.models)
    if view.queues:
        found["queues"] = _queues(view)
    if view.budgets:
        found["budgets"] = _budgets(view.budgets)
    if view.jobs:
        found["jobs"] = _jobs(view)
    return found


def summary(view: FleetView) -> list[Text]:
    """Return lines about the whole installation, as far as its reader may know it."""
    first = [f"fanout {time.strftime('%H:%M:%S', time.localtime(view.at))}"]
    second = []
    if view.worker_states is not None:
        states = [f"{n:,} {state}" for state, n in view.worker_states.items() if n]
        workers = count(sum(view.worker_states.values()), "worker")
        fitness = f": {', '.join(states)}" if states else ""
        first.append(f"{count(view.host_count or 0, 'host')}, {workers}{fitness}")
        second.append(f"{view.busy or 0:,} slots used, {view.free or 0:,} free")
    second.append(f"{sum(queue.jobs for queue in view.queues):,} queued")
    if view.tokens_per_minute is not None:
        second.append(f"{view.tokens_per_minute:,} tokens/min")
    if view.cost_usd_per_minute is not None:
        second.append(f"{formatting.dollars(view.cost_usd_per_minute)}/min")
    lines = [Text("  ".join(first), style="bold"), Text("  ".join(second))]
    if view.redis_bytes is not None:
        lines.append(Text(_memory(view), style=_memory_style(view)))
    return lines


class TopBoard:
    """The screen of `fanout top`."""

    def __init__(self) -> None:
        self.view: FleetView | None = None
        self.problem = ""
        """The reason why the view is not up to date; empty when it is."""

    def render(self, height: int, width: int) -> Group:
        """Return a picture of at most `height` lines, each at most `width` cells wide."""
        lines = [] if self.view is None else self._lines(self.view, height - 1, width)
        end = Text(output.one_line(self.problem), style="red") if self.problem else _help()
        lines = [*lines[: height - 1], end]
        for line in lines:
            line.truncate(width, overflow="ellipsis")
            line.no_wrap = True
        return Group(*lines)

    def _lines(self, view: FleetView, height: int, width: int) -> list[Text]:
        lines = summary(view)
        room = height - len(lines)
        share = max(LEAST_LINES, room // MOST_SHARE)
        shown = tables(view, workers_at_most=share - 1)
        gap = [Text()] if room >= ROOMY_LINES else []
        for what, table in shown.items():
            left = height - len(lines) - len(gap)
            if part := table.lines(left if what == "jobs" else min(share, left), width, what):
                lines += [*gap, *part]
        if not view.jobs:
            lines += [*gap, Text("No job is running.", style="dim")]
        return lines


def _help() -> Text:
    return Text("q: quit", style="dim")


def _workers(view: FleetView) -> Table:
    workers = view.workers or ()
    return Table(
        ("WORKER", "HOST", "STATE", "USED", "SLOTS", "SANDBOX", "WHY"),
        [
            (*(one.name, one.host, one.state), str(one.busy), str(one.slots), one.sandbox, one.why)
            for one in workers
        ],
        elastic=(0, 1, 6),
        styles=[FITNESS_STYLES.get(one.state, "") for one in workers],
        right=(3, 4),
    )


def _hosts(view: FleetView) -> Table:
    hosts = view.hosts or ()
    return Table(
        ("HOST", "WORKERS", "FIT", "DRAINING", "UNFIT", "USED", "SLOTS"),
        [
            (
                one.name,
                *map(str, (one.workers, one.fit, one.draining, one.unfit, one.busy, one.slots)),
            )
            for one in hosts
        ],
        elastic=(0,),
        styles=["red" if one.unfit else "yellow" if one.draining else "green" for one in hosts],
        right=range(1, 7),
    )


def _queues(view: FleetView) -> Table:
    return Table(
        ("TENANT", "CLASS", "QUEUED", "OLDEST"),
        [
            (
                output.one_line(one.tenant, NAME_CHARACTERS),
                output.one_line(one.job_class, NAME_CHARACTERS),
                f"{one.jobs:,}",
                formatting.span(one.oldest_seconds),
            )
            for one in view.queues
        ],
        elastic=(0, 1),
        right=(2, 3),
    )


def _models(models: Sequence[ShownModel]) -> Table:
    return Table(
        ("MODEL", "STATE", "JOBS WAIT", "TRIED AGAIN AT", "WHY"),
        [
            (one.name, one.state, f"{one.waiting:,}", trial_time(one.until), one.why)
            for one in models
        ],
        elastic=(0, 4),
        styles=["yellow"] * len(models),
        right=(2,),
    )


def _budgets(budgets: Sequence[ShownBudget]) -> Table:
    return Table(
        ("TREE", "LIMIT", "USED", "RESERVED", "LEFT"),
        [
            (formatting.short_id(one.root_id), *amounts)
            for one in budgets
            for amounts in formatting.budget_amounts(one.budget)
        ],
        elastic=(1,),
        right=(2, 3, 4),
    )


def _jobs(view: FleetView) -> Table:
    return Table(
        ("ID", "AGENT", "TENANT", "#", "TIME", "NOW", "WHAT"),
        [
            (
                formatting.short_id(one.id),
                output.one_line(one.agent, NAME_CHARACTERS),
                output.one_line(one.tenant, NAME_CHARACTERS),
                str(one.attempt),
                formatting.between(one.started_at or one.submitted_at, view.at),
                formatting.newest(one, view.at) or one.state,
                one.description,
            )
            for one in view.jobs
        ],
        elastic=(1, 2, 5, 6),
        styles=[STYLES.get(one.state, "") for one in view.jobs],
        right=(3, 4),
    )


def _share(view: FleetView) -> float:
    return (view.redis_bytes or 0) / view.redis_limit_bytes if view.redis_limit_bytes else 0.0


def _memory(view: FleetView) -> str:
    used = f"Redis {(view.redis_bytes or 0) / MEBIBYTE:,.0f} MiB"
    if not view.redis_limit_bytes:
        return f"{used}, no limit"
    return f"{used} of {view.redis_limit_bytes / MEBIBYTE:,.0f} ({_share(view):.0%})"


def _memory_style(view: FleetView) -> str:
    if _share(view) >= ALARMING:
        return "red"
    return "yellow" if _share(view) >= ALARMING - 0.1 else ""
