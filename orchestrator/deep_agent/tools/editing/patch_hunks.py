"""Applying the hunks of a patch to a file's text: pure functions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from fanout.orchestrator.deep_agent.failures import ToolMistake
from fanout.orchestrator.deep_agent.tools.editing.line_ends import with_line_ends_of
from fanout.orchestrator.deep_agent.tools.editing.near_misses import in_plain_characters, near_miss
from fanout.orchestrator.deep_agent.tools.editing.patch_format import MAX_SHOWN_CHARACTERS, Hunk

MAX_SHOWN_PLACES = 3
"""Places that the error about an ambiguous hunk names."""

Reading = Callable[[str], str]

_READINGS: tuple[Reading, ...] = (
    str,
    str.rstrip,
    str.strip,
    lambda line: in_plain_characters(line).strip(),
)
"""How lines are compared, from exact to lenient: models drop whitespace at the ends of lines."""


def patched(text: str, hunks: Sequence[Hunk], path: str) -> str:
    """Return a text after all hunks; each line keeps its line end.

    Args:
        text: A file's text.
        hunks: In the order of their places in the file.
        path: The file's path, for errors.

    Raises:
        ToolMistake: A hunk's place is not in the file, or not clear; the message names the hunk.
    """
    file = _Lines(text)
    parts: list[str] = []
    done = 0
    for number, hunk in enumerate(hunks, start=1):
        try:
            start = _place(file, hunk, done)
        except ToolMistake as mistake:
            raise ToolMistake(f"Hunk {number} of {path}: {mistake}") from None
        stop = start + len(hunk.old)
        after = "".join(f"{line}\n" for line in _new_lines(hunk, file.seen[start:stop]))
        before = "".join(file.ended[start:stop])
        parts += [*file.ended[done:start], with_line_ends_of(before, after, file.end_near(start))]
        done = stop
    return file.joined([*parts, *file.ended[done:]])


def _new_lines(hunk: Hunk, found: Sequence[str]) -> Iterator[str]:
    """Yield a hunk's new lines; those that stay are the file's, which may differ in whitespace."""
    kept = iter(found)
    for kind, line in hunk.lines:
        own = line if kind == "+" else next(kept)
        if kind != "-":
            yield own


class _Lines:
    """A text's lines, as they are and as a model sees them."""

    def __init__(self, text: str) -> None:
        self.ended = [f"{line}\n" for line in text.split("\n")]
        self._is_open = bool(text) and not text.endswith("\n")
        """Whether the last line has no end."""
        if not self._is_open:
            self.ended.pop()
        elif self.end_near(len(self.ended) - 1) == "\r\n":
            self.ended[-1] = self.ended[-1][:-1] + "\r\n"
        self.seen = [line[:-1].removesuffix("\r") for line in self.ended]
        self._read: dict[Reading, tuple[list[str], dict[str, list[int]]]] = {}

    def places(self, wanted: Sequence[str], start: int) -> list[int]:
        """Return the first places of some lines, by the strictest reading that finds them."""
        for reading in _READINGS:
            lines, numbers = self._as_read(reading)
            read = [reading(line) for line in wanted]
            candidates = numbers.get(read[0], ())
            found = (
                at
                for at in islice(candidates, bisect_left(candidates, start), None)
                if lines[at : at + len(read)] == read
            )
            if first := list(islice(found, MAX_SHOWN_PLACES)):
                return first
        return []

    def _as_read(self, reading: Reading) -> tuple[list[str], dict[str, list[int]]]:
        """Return the lines in a reading, and the numbers of each."""
        if reading not in self._read:
            lines = [reading(line) for line in self.seen]
            numbers: dict[str, list[int]] = {}
            for number, line in enumerate(lines):
                numbers.setdefault(line, []).append(number)
            self._read[reading] = lines, numbers
        return self._read[reading]

    def end_near(self, at: int) -> str:
        """Return the line end above a position, or else at it."""
        near = self.ended[at - 1 : at] if at else self.ended[:1]
        return "\r\n" if near and near[0].endswith("\r\n") else "\n"

    def joined(self, parts: Sequence[str]) -> str:
        """Return a text whose last line has an end only if it had one before."""
        text = "".join(parts)
        if self._is_open and text.endswith("\n"):
            return text[:-1].removesuffix("\r")
        return text


def _place(lines: _Lines, hunk: Hunk, start: int) -> int:
    """Return the number of the line, from 0, at which a hunk applies."""
    for anchor in hunk.anchors:
        found = lines.places([anchor], start)
        if not found:
            shown = anchor.strip()[:MAX_SHOWN_CHARACTERS]
            raise ToolMistake(f"there is no line {shown!r} after line {start}.")
        start = found[0] + 1
    count = len(lines.seen)
    if not hunk.old:
        return start if hunk.anchors else count
    if hunk.at_end:
        start = max(start, count - len(hunk.old))
    found = lines.places(hunk.old, start)
    if not found:
        where = f"after line {start}" if start else "in the file"
        hint = near_miss("\n".join(lines.seen), "\n".join(hunk.old))
        raise ToolMistake(f"its lines with space or - are not {where}. {hint}".rstrip())
    if len(found) > 1 and not hunk.anchors:
        places = ", ".join(str(at + 1) for at in found)
        raise ToolMistake(
            f"its lines are at several places (line {places}). Give more lines around it, or the "
            "line above it after @@."
        )
    return found[0]
