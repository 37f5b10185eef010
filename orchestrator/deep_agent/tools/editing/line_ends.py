"""What a text has beside its characters: a model does not see it, and an edit keeps it.

These are the carriage returns at the ends of lines, and a byte order mark at the beginning.
"""

from __future__ import annotations

import difflib

MAX_COMPARED_LINES = 1_000_000
"""The product of the numbers of lines that are compared one by one: at most about a second. Above
it, lines are paired by their position."""


BYTE_ORDER_MARK = "\ufeff"


def split_byte_order_mark(text: str) -> tuple[str, str]:
    """Return a text's byte order mark, empty if it has none, and the rest of the text."""
    rest = text.removeprefix(BYTE_ORDER_MARK)
    return text[: len(text) - len(rest)], rest


def without_carriage_returns(text: str) -> str:
    """Return a text with all lines ended by a line feed alone, as a model sees it."""
    return text.replace("\r\n", "\n")


def with_line_ends_of(before: str, after: str, end: str) -> str:
    """Return a new text in which each line has the end that it had before.

    Args:
        before: The text that is replaced.
        after: The new text, with line feeds only.
        end: The line end where `before` has none.
    """
    if "\r\n" not in before and (end == "\n" or "\n" in before):
        return after
    *lines, last = before.split("\n")
    ends = ["\r\n" if line.endswith("\r") else "\n" for line in lines]
    *new_lines, new_last = after.split("\n")
    if len(set(ends or [end])) == 1:
        new_ends = [*(ends or [end])[:1]] * len(new_lines)
    else:
        old = [line.removesuffix("\r") for line in lines]
        partners = _partners([*old, last], [*new_lines, new_last])
        new_ends = [ends[min(partner, len(ends) - 1)] for partner in partners[:-1]]
    ended = (line + new_end for line, new_end in zip(new_lines, new_ends, strict=True))
    return "".join(ended) + new_last


def line_end_at(text: str, line_feed: int) -> str:
    """Return the line end whose line feed is at a position; a line feed if there is none."""
    return "\r\n" if line_feed > 0 and text[line_feed - 1] == "\r" else "\n"


def _partners(old: list[str], new: list[str]) -> list[int]:
    """Return for each new line the old line that it is, or whose place it takes."""
    if len(old) * len(new) > MAX_COMPARED_LINES:
        return [min(number, len(old) - 1) for number in range(len(new))]
    partners: list[int] = []
    matcher = difflib.SequenceMatcher(None, old, new)
    for _, old_start, old_stop, new_start, new_stop in matcher.get_opcodes():
        last = max(old_stop - 1, 0)
        partners += (min(old_start + n, last) for n in range(new_stop - new_start))
    return partners
