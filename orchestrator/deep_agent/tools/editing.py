"""Replacing text in a file's text: pure functions.

A model does not see the carriage returns at the ends of lines nor a byte order mark, and an edit
keeps them. Where a text is not found, the error names the lines that are nearly the same by their
numbers, and never repeats what is in them.
"""

from __future__ import annotations

import difflib
import itertools
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ..backends.protocol import MAX_FILE_BYTES
from ..failures import ToolMistake

MAX_COMPARED_LINES = 1_000_000
"""The product of the numbers of lines that are compared one by one: at most about a second. Above
it, lines are paired by their position."""


BYTE_ORDER_MARK = "\ufeff"

MAX_TEXT_CHARACTERS = 1_000_000
"""A larger file gets no hint: it would take longer than the model needs to read again."""

MAX_WANTED_CHARACTERS = 50_000
"""A larger text gets no hint."""

MAX_STARTS = 200
"""Places in the file at which the wanted lines are compared."""

MAX_SIMILAR_LINES = 2_000
"""Lines that are compared letter by letter, which takes up to 0.1 ms each."""

MAX_SIMILAR_CHARACTERS = 200
"""The longest line that is compared: a longer one takes much longer."""

LEAST_SIMILARITY = 0.8
"""The least similarity of such a line, in `difflib`'s measure: a changed word, not another
statement."""

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


def split_byte_order_mark(text: str) -> tuple[str, str]:
    """Return a text's byte order mark, empty if it has none, and the rest of the text."""
    rest = text.removeprefix(BYTE_ORDER_MARK)
    return text[: len(text) - len(rest)], rest


def without_carriage_returns(text: str) -> str:
    """Return a text with all lines ended by a line feed alone, as a model sees it."""
    return text.replace("\r\n", "\n")


def match_line_ends(before: str, after: str, end: str) -> str:
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


def find_line_end(text: str, line_feed: int) -> str:
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


@dataclass(frozen=True)
class Edit:
    """One replacement."""

    old: str
    """The text to replace, in which line ends do not matter; empty to fill an empty file."""
    new: str
    replace_all: bool = False
    """Replace every occurrence; otherwise there must be exactly one."""


def edited(text: str, edits: Sequence[Edit]) -> tuple[str, int]:
    """Return a text after all edits, one after the other, and the number of replacements.

    Args:
        text: A file's text.
        edits: At least one.

    Raises:
        ToolMistake: One of them cannot be carried out; the message names it if there are several.
    """
    total = 0
    for number, edit in enumerate(edits, start=1):
        try:
            text, occurrences = replaced(text, edit)
        except ToolMistake as mistake:
            if len(edits) == 1:
                raise
            raise ToolMistake(
                f"Edit {number} of {len(edits)}: {str(mistake).rstrip('.')}. None of the edits was "
                "made."
            ) from None
        total += occurrences
    return text, total


def replaced(text: str, edit: Edit) -> tuple[str, int]:
    """Return a text after an edit, and the number of replacements.

    Each line keeps its line end: the model does not see carriage returns.

    Raises:
        ToolMistake: The old text is missing, not unique, equal to the new one, or empty although
            the file is not.
    """
    if edit.old == edit.new:
        raise ToolMistake("old_string and new_string are identical")
    if not edit.old:
        return _filled(text, edit.new), 1
    old, new = without_carriage_returns(edit.old), without_carriage_returns(edit.new)
    if old == new:
        raise ToolMistake(
            "old_string and new_string differ in line ends only, which edits leave as they are."
        )
    seen = without_carriage_returns(text)
    occurrences = seen.count(old)
    if not occurrences:
        hint = near_miss(seen, old)
        raise ToolMistake("old_string not found in file content" + (f". {hint}" if hint else ""))
    if occurrences > 1 and not edit.replace_all:
        raise ToolMistake(
            f"old_string appears {occurrences} times. Provide more context to make it unique, "
            "or set replace_all=True."
        )
    if len(text) + occurrences * (len(new) - len(old)) > MAX_FILE_BYTES:
        raise ToolMistake(
            f"The file would be larger than {MAX_FILE_BYTES} bytes, which is the most."
        )
    if len(seen) == len(text):
        return text.replace(old, new), occurrences
    return "".join(_parts_with_line_ends(text, seen, old, new)), occurrences


def _filled(text: str, new: str) -> str:
    if text:
        raise ToolMistake(
            "old_string is empty, which fills an empty file; this file is not empty. Give the "
            "exact text to replace."
        )
    return new


def _parts_with_line_ends(text: str, seen: str, old: str, new: str) -> Iterator[str]:
    """Yield the parts of the new text: what stays as it is, and what is put in.

    Args:
        text: The file's text.
        seen: The same with line feeds only, in which `old` is searched.
        old: The text to replace.
        new: The text in its place.
    """
    position, line_ends = _Positions(text), _LineEnds(text)
    made: dict[tuple[str, str], str] = {}
    done = 0
    at = seen.find(old)
    while at != -1:
        start, stop = position.in_file(at), position.in_file(at + len(old))
        yield text[done:start]
        place = text[start:stop], line_ends.next_line_start(stop)
        if place not in made:  # most places are alike
            made[place] = match_line_ends(place[0], new, place[1])
        yield made[place]
        done = stop
        at = seen.find(old, at + len(old))
    yield text[done:]


class _Positions:
    """Finds a position of the text without carriage returns in the text with them."""

    def __init__(self, text: str) -> None:
        ends = itertools.accumulate(len(part) + 1 for part in text.split("\r\n")[:-1])
        self._ends = [end - 1 for end in ends]

    def in_file(self, seen_at: int) -> int:
        """Return the position in the file; before the carriage return at a line's end."""
        return seen_at + bisect_left(self._ends, seen_at)


class _LineEnds:
    """Finds line ends in a text from its beginning to its end; the text is read once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._break = text.find("\n")

    def next_line_start(self, at: int) -> str:
        """Return the end of the line that a position is in; of the last line, the one before it.

        Positions must not decrease from call to call.
        """
        while self._break < at:
            found = self._text.find("\n", self._break + 1)
            if found == -1:
                break
            self._break = found
        return find_line_end(self._text, self._break)


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
