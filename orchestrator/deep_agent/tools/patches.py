"""Patches in the V4A format ("*** Begin Patch"), which some models are trained to write.

A patch has sections that add, delete, update or move a file. A hunk of an update gives lines that
are in the file, with `-` before those to remove, and lines to add with `+`; lines after `@@` say
where to begin looking. There are no line numbers. Everything is checked before the first write. No
kept package reads V4A for Python 3.11.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from ..backends.protocol import Backend
from ..failures import ToolMistake
from .editing import (
    in_plain_characters,
    match_line_ends,
    near_miss,
    split_byte_order_mark,
    without_carriage_returns,
)
from .files import Files, encoded, hash_version
from .locating import Locator

BEGIN, END = "*** Begin Patch", "*** End Patch"
ADD, UPDATE, DELETE = "*** Add File: ", "*** Update File: ", "*** Delete File: "
MOVE, END_OF_FILE = "*** Move to: ", "*** End of File"

MAX_SHOWN_CHARACTERS = 80
"""The longest part of a line of the patch in an error: enough to find it."""

_UNIFIED_RANGE = re.compile(r"-\d+(,\d+)? \+\d+(,\d+)? @@ ?")
"""The line numbers of a unified diff, which some models write after `@@`."""

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

SeenVersion = Callable[[str], str | None]
"""Returns the version of a file that the agent saw; None if it saw none."""


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
        parts += [*file.ended[done:start], match_line_ends(before, after, file.end_near(start))]
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


@dataclass(frozen=True, kw_only=True)
class PatchedFile:
    """What a patch does to one file."""

    path: str
    before: bytes | None
    after: bytes | None
    """None for a file that is not there."""

    @property
    def change(self) -> Literal["added", "modified", "deleted"]:
        """What happens to it."""
        if self.before is None:
            return "added"
        return "deleted" if self.after is None else "modified"

    @property
    def version(self) -> str | None:
        """The version of the new content."""
        return None if self.after is None else hash_version(self.after)


def patched_paths(sections: Sequence[Section], locator: Locator) -> list[str]:
    """Return the files that a patch names, each once.

    Raises:
        ToolMistake: A path is invalid, or two sections name one file.
    """
    paths: list[str] = []
    for section in sections:
        paths.append(locator.resolved(section.path))
        if isinstance(section, UpdatedFile) and section.new_path is not None:
            paths.append(locator.resolved(section.new_path))
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise ToolMistake(f"The patch names {twice} twice. Put all its hunks into one section.")
    return paths


class Patching:
    """Patches the files of one backend.

    Args:
        backend: The files.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._files = Files(backend)
        self._locator = Locator(backend)

    async def planned(self, sections: Sequence[Section], seen: SeenVersion) -> list[PatchedFile]:
        """Return what a patch does to each file, without doing it.

        Args:
            sections: The patch.
            seen: Which versions the agent saw.

        Raises:
            ToolMistake: A section cannot be carried out.
        """
        changes: list[PatchedFile] = []
        for section in sections:
            path = self._locator.resolved(section.path)
            if isinstance(section, AddedFile):
                await self._refuse_existing(path)
                changes.append(PatchedFile(path=path, before=None, after=encoded(section.text)))
                continue
            before = await self._files.current(path, seen(path))
            if isinstance(section, DeletedFile):
                changes.append(PatchedFile(path=path, before=before, after=None))
            else:
                changes += await self._update(section, path, before)
        return sorted(changes, key=lambda each: each.after is None)

    async def carry_out(self, changes: Sequence[PatchedFile]) -> None:
        """Make all changes; after a failure those that were made are undone.

        Raises:
            ToolMistake: A file could not be written, or was created meanwhile.
        """
        made: list[PatchedFile] = []
        try:
            for change in changes:
                async with self._locator.errors(change.path):
                    await self._make(change)
                made.append(change)
        except BaseException as failure:
            left = [each.path for each in reversed(made) if not await self._is_undone(each)]
            if not isinstance(failure, ToolMistake):
                raise
            outcome = f"These stay changed: {', '.join(left)}." if left else "Nothing was changed."
            raise ToolMistake(f"{str(failure).rstrip('.')}. {outcome}") from None

    async def _update(self, section: UpdatedFile, path: str, before: bytes) -> list[PatchedFile]:
        mark, text = split_byte_order_mark(before.decode())
        after = encoded(mark + await asyncio.to_thread(patched, text, section.hunks, path))
        if section.new_path is None:
            return [PatchedFile(path=path, before=before, after=after)]
        new_path = self._locator.resolved(section.new_path)
        await self._refuse_existing(new_path)
        return [
            PatchedFile(path=new_path, before=None, after=after),
            PatchedFile(path=path, before=before, after=None),
        ]

    async def _refuse_existing(self, path: str) -> None:
        try:
            await self._backend.stat(path)
        except OSError:
            return  # there is nothing, or the write says what is wrong
        raise ToolMistake(f"File already exists: {path}. Update it instead of adding it.")

    async def _make(self, change: PatchedFile) -> None:
        if change.after is None:
            await self._backend.delete(change.path)
        else:
            await self._backend.write_bytes(
                change.path, change.after, create_only=change.before is None
            )

    async def _is_undone(self, change: PatchedFile) -> bool:
        try:
            if change.before is None:
                await self._backend.delete(change.path)
            else:
                await self._backend.write_bytes(change.path, change.before)
        except (OSError, ToolMistake):
            return False
        return True
