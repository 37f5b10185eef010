"""How file text is shown to a model and how it is replaced: pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.deep_agent.failures import ToolMistake

LINE_NUMBER_WIDTH = 6
"""The gutter of `cat -n`."""

MAX_LINE_CHARACTERS = 5_000
"""S2: a longer line is shown in chunks numbered 5, 5.1, 5.2 …"""

MAX_RESULT_CHARACTERS = 80_000
"""S2: about 20,000 tokens, the most that one tool result may take of a model's context."""

EMPTY_FILE = "System reminder: File exists but has empty contents"
"""An empty result would look like a failed read."""


def numbered(text: str, offset: int, limit: int) -> str:
    """Lines `offset` to `offset + limit` as `cat -n` shows them, and where to read on.

    Raises ToolMistake when the offset is past the end.
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
    """As many chunks of one huge line as fit; there is always room for some."""
    fitting = MAX_RESULT_CHARACTERS // (MAX_LINE_CHARACTERS + 2 * LINE_NUMBER_WIDTH)
    left_out = sum(len(row.partition("\t")[2]) for row in rows[fitting:])
    return [*rows[:fitting], f"... (line {number} is cut here: {left_out} more characters in it)"]


@dataclass(frozen=True, kw_only=True)
class Replaced:
    """A text after a replacement."""

    text: str
    occurrences: int


def replaced(text: str, old: str, new: str, *, replace_all: bool) -> Replaced:
    """The text with `old` replaced by `new`, the file's line ends kept.

    ToolMistake in S2's words.
    """
    if not old:
        raise ToolMistake("old_string is empty. Give the exact text to replace.")
    if old == new:
        raise ToolMistake("old_string and new_string are identical")
    old, new = _with_line_ends_of(text, old, new)
    occurrences = text.count(old)
    if not occurrences:
        raise ToolMistake("old_string not found in file content")
    if occurrences > 1 and not replace_all:
        raise ToolMistake(
            f"old_string appears {occurrences} times. Provide more context to make it unique, "
            "or set replace_all=True."
        )
    return Replaced(text=text.replace(old, new), occurrences=occurrences)


def _with_line_ends_of(text: str, old: str, new: str) -> tuple[str, str]:
    """`read_file` hides carriage returns, so a model writes bare newlines whatever the file has."""
    breaks, crlf_breaks = text.count("\n"), text.count("\r\n")
    all_crlf = crlf_breaks > 0 and breaks == crlf_breaks
    if all_crlf or (old not in text and crlf_breaks and _crlf(old) in text):
        return _crlf(old), _crlf(new)
    if old not in text and _lf(old) in text:
        return _lf(old), _lf(new)
    return old, new


def _lf(text: str) -> str:
    return text.replace("\r\n", "\n")


def _crlf(text: str) -> str:
    return _lf(text).replace("\n", "\r\n")


def bounded(text: str, note: str) -> str:
    """The text, cut at a line's end when it is too long for a tool result, with a note that says so."""
    if len(text) <= MAX_RESULT_CHARACTERS:
        return text
    head = text[:MAX_RESULT_CHARACTERS]
    return f"{head[: head.rfind(chr(10)) if chr(10) in head else None]}\n... ({note})"
