"""What a command prints.

Its payload on stdout, the rest on stderr, and no tricks without a terminal.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator import shortening

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters and direction marks: a job's words must not drive a person's terminal."""

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

GAP = 2
"""Spaces between the columns of a table."""
LEAST_WIDTH = 12
"""Of a column that gives way: less of it would say nothing."""


def printable(text: object) -> str:
    """Foreign text without what a terminal would obey; line ends and tabs stay."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(text))


def one_line(text: object, width: int | None = None) -> str:
    """Foreign text on one line, cut to `width` characters."""
    return shortening.one_line(printable(text), width)


def payload(text: str) -> None:
    """A piece of the result."""
    print(text)


def payload_now(text: str) -> None:
    """A line of a stream, out at once."""
    print(printable(text), flush=True)


def flush() -> None:
    """What was printed is out before a long wait begins."""
    sys.stdout.flush()


def raw_payload(data: bytes) -> None:
    """Bytes of the result, unchanged."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def document(value: Any) -> None:
    """The result as one JSON document."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def json_line(value: Any) -> None:
    """One element of a stream, as a line of JSON that is out at once."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def notice(text: str) -> None:
    """Something a person should know that is not the result."""
    print(printable(text), file=sys.stderr, flush=True)


def stdout_is_terminal() -> bool:
    """Whether a person looks at stdout; `TERM=dumb` counts as none."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def stderr_is_terminal() -> bool:
    """Whether a person looks at stderr."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def stdin_is_terminal() -> bool:
    """Whether somebody can answer a question."""
    return sys.stdin is not None and sys.stdin.isatty()


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    state_column: int | None = None,
    elastic: Collection[int] = (-1,),
    wrapped: bool = False,
) -> None:
    """Aligned columns: whole and plain, or on a terminal with the `elastic` ones cut or wrapped to fit.

    Cells are lines already: foreign text has been through `one_line`.
    """
    lines = [list(header), *(list(row) for row in rows)]
    widths = _widths(lines)
    if stdout_is_terminal():
        fitted = _fitted(widths, elastic, Console().width - GAP * (len(widths) - 1))
        grid = _grid(lines, fitted, state_column, wrapped=wrapped)
        # What does not fit even so is wrapped by the terminal: rich would leave out columns.
        Console(width=sum(fitted) + GAP * len(fitted)).print(grid)
        return
    for line in lines:
        print(
            (" " * GAP)
            .join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            .rstrip()
        )


def _fitted(widths: Sequence[int], elastic: Collection[int], room: int) -> list[int]:
    """Widths that fit into the room if they can: the elastic columns give way, the widest first."""
    fitted = list(widths)
    places = [place % len(fitted) for place in elastic]
    while sum(fitted) > room:
        widest = max(places, key=fitted.__getitem__)
        if fitted[widest] <= LEAST_WIDTH:
            break
        fitted[widest] -= 1
    return fitted


def _grid(
    lines: list[list[str]], widths: list[int], state_column: int | None, *, wrapped: bool
) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    overflow: Literal["fold", "ellipsis"] = "fold" if wrapped else "ellipsis"
    for title, width in zip(lines[0], widths, strict=True):
        grid.add_column(title, width=width, no_wrap=not wrapped, overflow=overflow)
    for row in lines[1:]:
        cells = [Text(cell) for cell in row]
        if state_column is not None:
            cells[state_column].stylize(STYLES.get(row[state_column], ""))
        grid.add_row(*cells)
    return grid


def _widths(lines: list[list[str]]) -> list[int]:
    return [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]


def pairs(rows: Iterable[tuple[str, object]]) -> None:
    """Names and values, one a line; values may have several lines and are indented."""
    known = [
        (name, printable(value)) for name, value in rows if value not in (None, "", {}, (), [])
    ]
    width = max((len(name) for name, _ in known), default=0) + 2
    for name, value in known:
        first, *rest = value.splitlines() or [""]
        print(f"{name.ljust(width)}{first}".rstrip())
        for line in rest:
            print(f"{'':{width}}{line}".rstrip())
