"""Replacing text in a file's text: pure functions."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fanout.orchestrator.deep_agent.backends.protocol import MAX_FILE_BYTES
from fanout.orchestrator.deep_agent.failures import ToolMistake
from fanout.orchestrator.deep_agent.tools.editing.line_ends import (
    line_end_at,
    with_line_ends_of,
    without_carriage_returns,
)
from fanout.orchestrator.deep_agent.tools.editing.near_misses import near_miss


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
        place = text[start:stop], line_ends.next_from(stop)
        if place not in made:  # most places are alike
            made[place] = with_line_ends_of(place[0], new, place[1])
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

    def next_from(self, at: int) -> str:
        """Return the end of the line that a position is in; of the last line, the one before it.

        Positions must not decrease from call to call.
        """
        while self._break < at:
            found = self._text.find("\n", self._break + 1)
            if found == -1:
                break
            self._break = found
        return line_end_at(self._text, self._break)
