"""Patches in the V4A format ("*** Begin Patch"), which some models are trained to write.

A patch has sections that add, delete, update or move a file. A hunk of an update gives lines that
are in the file, with `-` before those to remove, and lines to add with `+`; lines after `@@` say
where to begin looking. There are no line numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fanout.orchestrator.deep_agent.failures import ToolMistake
from fanout.orchestrator.deep_agent.tools.editing.line_ends import without_carriage_returns

BEGIN, END = "*** Begin Patch", "*** End Patch"
ADD, UPDATE, DELETE = "*** Add File: ", "*** Update File: ", "*** Delete File: "
MOVE, END_OF_FILE = "*** Move to: ", "*** End of File"

MAX_SHOWN_CHARACTERS = 80
"""Of a line of the patch in an error: enough to find it."""

_UNIFIED_RANGE = re.compile(r"-\d+(,\d+)? \+\d+(,\d+)? @@ ?")
"""The line numbers of a unified diff, which some models write after `@@`."""


@dataclass(frozen=True)
class AddedFile:
    """A file to create."""

    path: str
    text: str


@dataclass(frozen=True)
class DeletedFile:
    """A file to delete."""

    path: str


@dataclass
class Hunk:
    """Lines to find in a file, and what to make of them."""

    anchors: list[str] = field(default_factory=list)
    """Lines of the file above the hunk, in order."""
    lines: list[tuple[str, str]] = field(default_factory=list)
    """Each a space (stays), `-` (goes) or `+` (comes), and the line's text."""
    at_end: bool = False
    """Whether its last line is the file's last."""

    @property
    def old(self) -> list[str]:
        """The lines that are in the file."""
        return [text for kind, text in self.lines if kind != "+"]


@dataclass(frozen=True)
class UpdatedFile:
    """A file to change."""

    path: str
    hunks: Sequence[Hunk]
    new_path: str | None = None
    """Where to move it."""


Section = AddedFile | DeletedFile | UpdatedFile


def parse_patch(patch: str) -> list[Section]:
    """Return the sections of a patch.

    Raises:
        ToolMistake: It is not a patch of this format; the message names the line.
    """
    lines = without_carriage_returns(patch).split("\n")
    marks = [line.strip() for line in lines]
    if BEGIN not in marks or END not in marks[marks.index(BEGIN) :]:
        raise ToolMistake(f"A patch begins with the line {BEGIN!r} and ends with {END!r}.")
    begin = marks.index(BEGIN) + 1
    end = len(marks) - 1 - marks[::-1].index(END)
    sections = [_section(block) for block in _blocks(lines[begin:end], begin + 1)]
    if not sections:
        raise ToolMistake(f"The patch has no section, such as {UPDATE + 'path'!r}.")
    return sections


@dataclass(frozen=True)
class _Block:
    """The lines of one section with the number of its first in the patch."""

    number: int
    lines: list[str]


def _blocks(lines: Iterable[str], first: int) -> list[_Block]:
    blocks: list[_Block] = []
    for number, line in enumerate(lines, start=first):
        if line.startswith((ADD, UPDATE, DELETE)):
            blocks.append(_Block(number, [line]))
        elif blocks:
            blocks[-1].lines.append(line)
        elif line.strip():
            raise _mistake(number, line, f"a section begins with {ADD!r}, {UPDATE!r} or {DELETE!r}")
    for block in blocks:
        while len(block.lines) > 1 and not block.lines[-1]:
            block.lines.pop()
    return blocks


def _section(block: _Block) -> Section:
    head, *body = block.lines
    if head.startswith(ADD):
        for number, line in enumerate(body, start=block.number + 1):
            if line and not line.startswith("+"):
                raise _mistake(number, line, "each line of a new file begins with +")
        return AddedFile(head.removeprefix(ADD).strip(), "".join(f"{line[1:]}\n" for line in body))
    if head.startswith(DELETE):
        if body:
            raise _mistake(block.number + 1, body[0], "nothing follows a file to delete")
        return DeletedFile(head.removeprefix(DELETE).strip())
    path, first, new_path = head.removeprefix(UPDATE).strip(), block.number + 1, None
    if body and body[0].startswith(MOVE):
        new_path, body, first = body[0].removeprefix(MOVE).strip(), body[1:], first + 1
    hunks = _hunks(body, first)
    if not hunks and new_path is None:
        raise ToolMistake(f"The section of {path} has no hunk, so it changes nothing.")
    return UpdatedFile(path, hunks, new_path)


def _hunks(lines: Sequence[str], first: int) -> list[Hunk]:
    hunks: list[Hunk] = []
    for number, line in enumerate(lines, start=first):
        if line == "@@" or line.startswith("@@ "):
            if not hunks or hunks[-1].lines:
                hunks.append(Hunk())
            anchor = _UNIFIED_RANGE.sub("", line[3:])
            hunks[-1].anchors += [anchor] if anchor.strip() else []
        elif line.rstrip() == END_OF_FILE and hunks:
            hunks[-1].at_end = True
        elif not line or line[0] in " +-":
            if not hunks or hunks[-1].at_end:
                hunks.append(Hunk())
            hunks[-1].lines.append((line[:1] or " ", line[1:]))
        else:
            raise _mistake(number, line, "a line of a hunk begins with a space, + or -")
    for count, hunk in enumerate(hunks, start=1):
        if all(kind == " " for kind, _ in hunk.lines):
            raise ToolMistake(f"Hunk {count} above line {first + len(lines)} changes nothing.")
    return hunks


def _mistake(number: int, line: str, rule: str) -> ToolMistake:
    return ToolMistake(f"Line {number} of the patch, {line[:MAX_SHOWN_CHARACTERS]!r}: {rule}.")
