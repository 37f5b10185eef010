"""Draws a table on a terminal: coloured, cut or wrapped to its width, with distinct titles."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Literal

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.segment import Segments
from rich.table import Table
from rich.text import Text

from ...shortening import common_prefix

LEAST_SHARED = 8
"""The shortest common beginning that is left out: little is gained with a shorter one."""

_BOUNDARY = re.compile(r"[\W_]")
"""The characters that end a word, or a part of a path or of a name."""
STYLES = {
    "queued": "dim",
    "running": "cyan",
    "waiting": "yellow",
    "succeeded": "green",
    "failed": "red",
    "timed_out": "red",
    "cancelled": "magenta",
    "ok": "green",
    "warn": "yellow",
    "fail": "red",
}

SPILL = "  ↳ "
"""The text before a cell that is printed below its row."""

LEAST_WIDTH = 12
"""The least width of an elastic column: less of it would be unreadable."""


def fitted_titles(texts: Sequence[str], cells: int) -> list[str]:
    """Return titles with a maximum width that distinguish the jobs.

    If a title is too wide, its common beginning with the most similar neighbour is left out, by
    whole words or parts of paths: twenty rows that read "Look at module …" say nothing.
    """
    if max(map(cell_len, texts), default=0) <= cells:
        return list(texts)
    shared = _shared_characters(texts)
    return [
        text if cell_len(text) <= cells else _cut(_without(text, shared[text]), cells)
        for text in texts
    ]


def _shared_characters(texts: Sequence[str]) -> dict[str, int]:
    """Return how many characters at its beginning each text has in common with another one."""
    ordered = sorted(set(texts))
    shared = dict.fromkeys(ordered, 0)
    for left, right in pairwise(ordered):
        length = common_prefix(left, right)
        shared[left] = max(shared[left], length)
        shared[right] = max(shared[right], length)
    return shared


def _without(text: str, shared: int) -> str:
    indent = len(text) - len(text.lstrip())
    begin = max((found.end() for found in _BOUNDARY.finditer(text, 0, shared)), default=0)
    return f"{text[:indent]}…{text[begin:]}" if begin - indent >= LEAST_SHARED else text


def _cut(text: str, cells: int) -> str:
    if cell_len(text) <= cells:
        return text
    return set_cell_size(text, max(0, cells - 1)).rstrip() + "…" if cells > 0 else ""


def print_grid(
    lines: Sequence[Sequence[str]],
    gap: int,
    state_column: int | None,
    elastic: Collection[int],
    *,
    title_column: int | None = None,
    spill: Mapping[int, int] | None = None,
    wrapped: bool = False,
    widths: Sequence[int] = (),
    has_header: bool = True,
) -> list[int]:
    """Print a table, and return the widths of its columns.

    Args:
        lines: The titles and the rows.
        gap: Spaces between columns.
        state_column: The column whose cells are coloured by state.
        elastic: The columns that are shortened when the terminal is too narrow.
        title_column: The elastic column whose cells are cut so that they still differ.
        spill: Row -> column of a cell that is printed in full below its row where it is cut.
        wrapped: Whether they are wrapped instead of cut.
        widths: The widths of the rows that were printed before; empty: none were.
        has_header: Whether the titles are printed.
    """
    room = Console().width - gap * (len(lines[0]) - 1)
    fitted = fitted_widths(_widths(lines, widths), elastic, room)
    if title_column is not None:
        lines = _with_fitted_titles(lines, title_column, fitted[title_column])
        # Shorter titles leave more room.
        fitted = fitted_widths(_widths(lines, widths), elastic, room)
    grid = _grid(lines, fitted, gap, state_column, wrapped=wrapped, has_header=has_header)
    below = {
        row: lines[row + 1][column]
        for row, column in (spill or {}).items()
        if cell_len(lines[row + 1][column]) > fitted[column]
    }
    # A table that is still too wide is wrapped by the terminal: rich would omit columns.
    console = Console(width=sum(fitted) + gap * len(fitted), highlight=False)
    if not below:
        console.print(grid)
        return fitted
    first = -1 if has_header else 0
    for row, drawn in enumerate(console.render_lines(grid, pad=False), start=first):
        console.print(Segments(drawn), no_wrap=True)
        if row in below:
            console.print(Text(f"{SPILL}{below[row]}", style=STYLES["failed"]), soft_wrap=True)
    return fitted


def _widths(lines: Sequence[Sequence[str]], least: Sequence[int]) -> list[int]:
    widths = [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)]
    return list(map(max, widths, least)) if least else widths


def _with_fitted_titles(
    lines: Sequence[Sequence[str]], column: int, cells: int
) -> list[Sequence[str]]:
    header, *rows = lines
    fitted: list[Sequence[str]] = [header]
    titles = fitted_titles([row[column] for row in rows], cells)
    for row, text in zip(rows, titles, strict=True):
        changed = list(row)
        changed[column] = text
        fitted.append(changed)
    return fitted


def wrapped(line: str, columns: int) -> str:
    """Return a line as lines with a maximum width, broken between words where possible."""
    lines = Text(line).wrap(Console(width=columns), columns)
    return "\n".join(piece.plain.rstrip() for piece in lines)


def padded(text: str, cells: int) -> str:
    """Return a text with spaces after it, up to a width in cells of a terminal."""
    return text + " " * max(0, cells - cell_len(text))


def fitted_widths(widths: Sequence[int], elastic: Collection[int], room: int) -> list[int]:
    """Return the widths with the elastic columns shortened, the widest first, to fit the room."""
    fitted = list(widths)
    columns = [column % len(fitted) for column in elastic]
    while sum(fitted) > room:
        widest = max(columns, key=fitted.__getitem__)
        if fitted[widest] <= LEAST_WIDTH:
            break
        fitted[widest] -= 1
    return fitted


def join_cells(
    cells: Sequence[Text],
    widths: Sequence[int],
    gap: int,
    *,
    style: str = "",
    right: Collection[int] = (),
) -> Text:
    """Return the cells of a row as one line of a picture, each cut or filled to its width.

    Args:
        cells: They are changed.
        widths: One for each of them.
        gap: Spaces between columns.
        style: That of the line.
        right: The columns that are aligned to the right.
    """
    line = Text(style=style)
    for column, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        cell.truncate(width, overflow="ellipsis")
        pad = cell.pad_left if column in right else cell.pad_right
        pad(width - cell.cell_len)
        line.append_text(cell)
        line.append(" " * gap)
    line.rstrip()
    return line


def _grid(
    lines: Sequence[Sequence[str]],
    widths: Sequence[int],
    gap: int,
    state_column: int | None,
    *,
    wrapped: bool,
    has_header: bool,
) -> Table:
    padding = (0, gap, 0, 0)
    grid = Table(
        box=None, pad_edge=False, padding=padding, header_style="bold", show_header=has_header
    )
    overflow: Literal["fold", "ellipsis"] = "fold" if wrapped else "ellipsis"
    for title, width in zip(lines[0], widths, strict=True):
        grid.add_column(title, width=width, no_wrap=not wrapped, overflow=overflow)
    for row in lines[1:]:
        cells = [Text(cell) for cell in row]
        if state_column is not None:
            cells[state_column].stylize(STYLES.get(row[state_column], ""))
        grid.add_row(*cells)
    return grid
