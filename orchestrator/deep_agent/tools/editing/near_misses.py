"""Why a text was not found: what in the file is nearly the same.

A hint names lines by their numbers and never repeats what is in them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

MAX_TEXT_CHARACTERS = 1_000_000
"""A larger file gets no hint: it would take longer than the model needs to read again."""

MAX_WANTED_CHARACTERS = 50_000
"""A larger text gets no hint."""

MAX_STARTS = 200
"""Places in the file at which the wanted lines are compared."""

MAX_SIMILAR_LINES = 2_000
"""Lines that are compared letter by letter, which takes up to 0.1 ms each."""

MAX_SIMILAR_CHARACTERS = 200
"""Of such a line: a longer one takes much longer."""

LEAST_SIMILARITY = 0.8
"""Of such a line, as `difflib` measures it: a changed word, not another statement."""

_LINE_NUMBER = re.compile(r"^[ ]*\d+(\.\d+)?\t", re.MULTILINE)
"""What read_file puts before each line."""

_PLAIN = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
        **dict.fromkeys("\u00a0\u2007\u202f", " "),
    }
)
"""Typographic characters that models replace by plain ones, or the other way round."""


def near_miss(text: str, wanted: str) -> str:
    """Return one sentence about why a text is not in a file; empty if nothing is similar.

    Args:
        text: The file's text, with line feeds only.
        wanted: The text that is not in it, or elsewhere in it, with line feeds only.
    """
    if wanted in text:
        return "It is elsewhere in the file."
    if len(text) > MAX_TEXT_CHARACTERS or len(wanted) > MAX_WANTED_CHARACTERS:
        return ""
    without_numbers = _LINE_NUMBER.sub("", wanted)
    if without_numbers != wanted and without_numbers in text:
        return "It begins lines with read_file's line numbers; leave the number and the tab out."
    unescaped = wanted.replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"')
    if unescaped != wanted and unescaped in text:
        return 'It is escaped twice: give line breaks, tabs and quotes as they are, not as \\n, \\t, \\".'
    if in_plain_characters(wanted) in in_plain_characters(text):
        return "Only quotes, dashes or special spaces differ; copy them from the file."
    return _similar_lines(text.split("\n"), wanted.strip("\n").split("\n"))


def in_plain_characters(text: str) -> str:
    """Return a text with plain quotes, dashes and spaces."""
    return text.translate(_PLAIN)


def _similar_lines(lines: Sequence[str], wanted: Sequence[str]) -> str:
    """Return a hint about lines that differ in whitespace, or only from some line on."""
    stripped = ["".join(line.split()) for line in wanted]
    if not any(stripped):
        return ""
    best_start, best_count = 0, 0
    for start in _starts(lines, stripped[0]):
        count = _equal_lines(islice(lines, start, None), stripped)
        if count > best_count:
            best_start, best_count = start, count
    if best_count == len(wanted):
        where = _lines(best_start + 1, best_start + best_count)
        return f"{where} of the file differ in whitespace only; copy them exactly."
    if best_count:
        where = _lines(best_start + 1, best_start + best_count)
        return (
            f"{where} of the file begin like it; line {best_start + best_count + 1} differs. "
            "Read that part again."
        )
    return _similar_line(lines, wanted[0])


def _similar_line(lines: Sequence[str], first: str) -> str:
    """Return a hint about the line that is most like the first one."""
    if len(lines) > MAX_SIMILAR_LINES or len(first) > MAX_SIMILAR_CHARACTERS:
        return ""
    near = difflib.get_close_matches(first, lines, 1, LEAST_SIMILARITY)
    return f"Line {lines.index(near[0]) + 1} of the file is similar." if near else ""


def _starts(lines: Sequence[str], first: str) -> Iterator[int]:
    found = 0
    for number, line in enumerate(lines):
        if first and "".join(line.split()) == first:
            yield number
            found += 1
            if found == MAX_STARTS:
                return


def _equal_lines(lines: Iterable[str], stripped: Sequence[str]) -> int:
    count = 0
    for line, wanted in zip(lines, stripped, strict=False):
        if "".join(line.split()) != wanted:
            break
        count += 1
    return count


def _lines(first: int, last: int) -> str:
    return f"Line {first}" if first == last else f"Lines {first} to {last}"
