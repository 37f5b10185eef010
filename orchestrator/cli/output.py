"""What a command prints: its payload on stdout, the rest on stderr, and no tricks without a terminal."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

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


def printable(text: object) -> str:
    """Foreign text without what a terminal would obey; line ends and tabs stay."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(text))


def one_line(text: object, width: int | None = None) -> str:
    """Foreign text on one line, cut to `width` characters."""
    line = " ".join(printable(text).split())
    return line if width is None or len(line) <= width else line[: max(0, width - 1)] + "…"


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
    clean = [list(row) for row in rows]
    if stdout_is_terminal():
        grid = _on_terminal(header, clean, state_column)
        for place in elastic:
            column = grid.columns[place]
            column.min_width, column.no_wrap = None, not wrapped
        Console().print(grid)
        return
    widths = _widths([list(header), *clean])
    for line in (header, *clean):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _on_terminal(header: Sequence[str], rows: list[list[str]], state_column: int | None) -> Table:
    grid = Table(*header, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column, width in zip(grid.columns, _widths([list(header), *rows]), strict=True):
        column.min_width, column.no_wrap, column.overflow = width, True, "ellipsis"
    for row in rows:
        cells = [Text(cell) for cell in row]
        if state_column is not None:
            cells[state_column].stylize(STYLES.get(row[state_column], ""))
        grid.add_row(*cells)
    return grid


def _widths(lines: list[list[str]]) -> list[int]:
    return [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]


def pairs(rows: Iterable[tuple[str, object]]) -> None:
    """Names and values, one a line; values may have several lines and are indented."""
    known = [(name, printable(value)) for name, value in rows if value not in (None, "", {}, (), [])]
    width = max((len(name) for name, _ in known), default=0) + 2
    for name, value in known:
        first, *rest = value.splitlines() or [""]
        print(f"{name.ljust(width)}{first}".rstrip())
        for line in rest:
            print(f"{'':{width}}{line}".rstrip())
