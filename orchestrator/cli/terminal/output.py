"""Printing: the payload on stdout, everything else on stderr, colours on terminals only.

An agent's answer is Markdown: it is rendered on a terminal, and unchanged elsewhere.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ... import shortening
from ...valid_text import clean, escape_hidden
from ...valid_text import printable as printable  # noqa: PLC0414 - a part of this door

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import Markdown


MOST_CELLS = 2
"""The most cells of a terminal for one character: a wide one has two."""

USUAL_COLUMNS = 80
"""The columns of a terminal that does not report its width."""

GAP = 2
"""Spaces between the columns of a table."""

before_printing: list[Callable[[], None]] = []
"""Functions that are called before output; each removes what it shows from the terminal for a
moment."""
_printed_at = 0.0


def one_line(text: object, width: int | None = None) -> str:
    """Return foreign text as one printable line of at most `width` characters."""
    return shortening.one_line(printable(text), width)


def last_print_time() -> float:
    """Return when something was printed last, by `time.monotonic`; 0 for nothing yet."""
    return _printed_at


def _printing() -> None:
    global _printed_at  # noqa: PLW0603 - a process has one terminal
    _printed_at = time.monotonic()
    for take_away in tuple(before_printing):
        take_away()


def payload(text: str) -> None:
    """Print a part of the result."""
    _printing()
    print(printable(text))


def print_line(text: str) -> None:
    """Print one line of a stream and flush it."""
    _printing()
    print(printable(text), flush=True)


def flush() -> None:
    """Flush stdout, so that everything printed is visible before a long wait."""
    sys.stdout.flush()


def raw_payload(data: bytes) -> None:
    """Write bytes of the result unchanged."""
    _printing()
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def document(value: Any) -> None:
    """Print the result as one JSON document."""
    _printing()
    print(escape_hidden(json.dumps(clean(value), indent=2, ensure_ascii=False)))


@contextmanager
def list_document(name: str) -> Iterator[Callable[[Iterable[Any]], None]]:
    """Print a JSON document with one list, part by part, as `document` prints it at once.

    A list that is interrupted is closed, so that what was printed is valid JSON.

    Args:
        name: The list's name in the document.

    Yields:
        A function that prints the next elements.
    """
    is_empty = True

    def add(elements: Iterable[Any]) -> None:
        nonlocal is_empty
        _printing()
        for element in elements:
            text = escape_hidden(json.dumps(clean(element), indent=2, ensure_ascii=False))
            before = f'{{\n  "{name}": [\n    ' if is_empty else ",\n    "
            print(before, text.replace("\n", "\n    "), sep="", end="")
            is_empty = False
        sys.stdout.flush()

    try:
        yield add
    except BrokenPipeError:  # nobody reads the rest
        raise
    except BaseException:
        if not is_empty:
            print("\n  ]\n}", flush=True)
        raise
    if is_empty:
        document({name: []})
    else:
        print("\n  ]\n}")


def with_id(job_id: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document about an object with its id under the common name of all documents."""
    return {"id": job_id, **value}


def json_line(value: Any) -> None:
    """Print one element of a stream as a line of JSON and flush it."""
    _printing()
    print(escape_hidden(json.dumps(clean(value), ensure_ascii=False)), flush=True)


def notice(text: str) -> None:
    """Print a message for a person, which is not the result, on stderr.

    A terminal's lines are wrapped between words, except indented ones: they hold a command, which
    can only be copied as one line if the terminal itself wraps it.
    """
    shown = printable(text)
    if stderr_is_terminal():
        shown = "\n".join(map(_wrapped, shown.split("\n")))
    _printing()
    print(shown, file=sys.stderr, flush=True)


def _wrapped(line: str) -> str:
    columns = _columns()
    if line.startswith(" ") or MOST_CELLS * len(line) <= columns:
        return line
    from .grid import wrapped  # noqa: PLC0415 - a pipe needs no rich

    return wrapped(line, columns)


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or USUAL_COLUMNS
    except OSError:
        return USUAL_COLUMNS


def stdout_is_terminal() -> bool:
    """Whether stdout is a terminal that supports cursor movement (not `TERM=dumb`)."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def stderr_is_terminal() -> bool:
    """Whether stderr is a terminal that supports cursor movement (not `TERM=dumb`)."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def stdin_is_terminal() -> bool:
    """Whether a person can answer a question."""
    return sys.stdin is not None and sys.stdin.isatty()


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    state_column: int | None = None,
    elastic: Collection[int] = (-1,),
    title_column: int | None = None,
    spill: Mapping[int, int] | None = None,
    wrapped: bool = False,
) -> None:
    """Print aligned columns, on a terminal cut or wrapped to its width.

    Args:
        header: the columns' titles.
        rows: the cells, each of which is printed on one line.
        state_column: the column whose cells are coloured by state.
        elastic: the columns that are shortened when a terminal is too narrow.
        title_column: an elastic column of titles, cut so that they still differ.
        spill: row -> column of a cell that is printed in full below its row where it is cut.
        wrapped: whether elastic columns are wrapped instead of cut.
    """
    add = growing_table(
        header,
        state_column=state_column,
        elastic=elastic,
        title_column=title_column,
        wrapped=wrapped,
    )
    add(rows, spill)


def growing_table(
    header: Sequence[str],
    *,
    state_column: int | None = None,
    elastic: Collection[int] = (-1,),
    title_column: int | None = None,
    wrapped: bool = False,
) -> Callable[[Iterable[Sequence[str]], Mapping[int, int] | None], None]:
    """Return a function that prints the next rows of a table, and their `spill`, as `table`.

    The header is printed before the first rows. A column is at least as wide as in earlier rows:
    later rows are unknown.
    """
    widths = [0] * len(header)
    is_first = True

    def add(rows: Iterable[Sequence[str]], spill: Mapping[int, int] | None = None) -> None:
        nonlocal widths, is_first
        lines = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
        _printing()
        if stdout_is_terminal():
            from .grid import print_grid  # noqa: PLC0415 - a pipe needs no rich

            widths = print_grid(
                [list(header), *lines],
                GAP,
                state_column,
                elastic,
                title_column=title_column,
                spill=spill,
                wrapped=wrapped,
                widths=widths,
                has_header=is_first,
            )
        else:
            lines = [list(header), *lines] if is_first else lines
            columns = zip(widths, *lines, strict=True)
            widths = [max([least, *map(len, cells)]) for least, *cells in columns]
            for line in lines:
                cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
                print((" " * GAP).join(cells).rstrip())
        is_first = False

    return add


def pairs(rows: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one per line; further lines of a value are indented.

    Empty values are omitted.
    """
    known = [
        (name, printable(value)) for name, value in rows if value not in (None, "", {}, (), [])
    ]
    width = max((len(name) for name, _ in known), default=0) + 2
    _printing()
    for name, value in known:
        first, *rest = value.splitlines() or [""]
        print(f"{name.ljust(width)}{first}".rstrip())
        for line in rest:
            print(f"{'':{width}}{line}".rstrip())


def print_answer(text: str) -> None:
    """Print an agent's answer as the payload; nothing if it is empty.

    Args:
        text: The answer, which may hold anything.
    """
    if not text.strip():
        return
    if not stdout_is_terminal():
        payload(text)
        return
    from rich.console import Console  # noqa: PLC0415 - a pipe needs no rich
    from rich.markdown import Markdown  # noqa: PLC0415 - the same

    # Without hyperlinks an address is text: a link could show one address and open another.
    Console().print(_Inert(Markdown(printable(text), hyperlinks=False)))


class _Inert:
    """Rendered Markdown that controls nothing: an entity (`&#x202e;`) becomes a character here."""

    def __init__(self, markdown: Markdown) -> None:
        self._markdown = markdown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment  # noqa: PLC0415 - a pipe needs no rich

        for segment in console.render(self._markdown, options):
            if not segment.control:
                yield Segment(printable(segment.text), segment.style)
