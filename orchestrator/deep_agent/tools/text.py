"""Formatting of files' text: pure functions."""

from __future__ import annotations

from fanout.orchestrator.deep_agent.failures import ToolMistake

LINE_NUMBER_WIDTH = 6
"""The width of line numbers, as in `cat -n`."""

MAX_LINE_CHARACTERS = 5_000
"""A longer line is split into chunks numbered 5, 5.1, 5.2 …"""

MAX_RESULT_CHARACTERS = 80_000
"""About 20,000 tokens, the most that one tool result may take of a model's context."""

EMPTY_FILE = "System reminder: File exists but has empty contents"
"""An empty result would look like a failed read."""


def numbered(text: str, offset: int, limit: int) -> str:
    """Return lines with their numbers in the form of `cat -n`, and a note on where to read on.

    Args:
        text: A file's text.
        offset: How many lines to skip.
        limit: How many lines to return at most.

    Raises:
        ToolMistake: The offset is past the end.
    """
    if not text:
        return EMPTY_FILE
    lines = text.removesuffix("\n").split("\n")
    if offset >= len(lines):
        raise ToolMistake(f"offset={offset} is past the end: the file has {len(lines)} lines.")
    shown: list[str] = []
    left = MAX_RESULT_CHARACTERS
    next_line = offset
    for line in lines[offset : offset + limit]:
        rows = _rows(line.removesuffix("\r"), next_line + 1)
        size = sum(map(len, rows)) + len(rows)
        if size > left and shown:
            break
        shown += _cut(rows, next_line + 1) if size > left else rows
        left -= size
        next_line += 1
    more = len(lines) - next_line
    if more:
        shown.append(f"... ({more} more lines. Use offset={next_line} to continue reading)")
    return "\n".join(shown)


def _rows(line: str, number: int) -> list[str]:
    chunks = [
        line[at : at + MAX_LINE_CHARACTERS] for at in range(0, len(line), MAX_LINE_CHARACTERS)
    ] or [""]
    labels = [str(number)] + [f"{number}.{index}" for index in range(1, len(chunks))]
    return [
        f"{label:>{LINE_NUMBER_WIDTH}}\t{chunk}"
        for label, chunk in zip(labels, chunks, strict=True)
    ]


def _cut(rows: list[str], number: int) -> list[str]:
    """Return as many chunks of one huge line as fit; some always do."""
    fitting = MAX_RESULT_CHARACTERS // (MAX_LINE_CHARACTERS + 2 * LINE_NUMBER_WIDTH)
    left_out = sum(len(row.partition("\t")[2]) for row in rows[fitting:])
    return [*rows[:fitting], f"... (line {number} is cut here: {left_out} more characters in it)"]
