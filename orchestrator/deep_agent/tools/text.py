"""Some lines of a text file that is read block by block: pure functions of its bytes."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from fanout.orchestrator.deep_agent.failures import ToolMistake
from fanout.orchestrator.deep_agent.tools.editing.line_ends import split_byte_order_mark

MAX_RESULT_CHARACTERS = 80_000
"""About 20,000 tokens, the most that one tool result may take of a model's context."""

LINE_NUMBER_WIDTH = 6
"""The width of line numbers, as in `cat -n`."""

MAX_LINE_CHARACTERS = 5_000
"""A longer line is split into chunks numbered 5, 5.1, 5.2 …"""

EMPTY_FILE = "System reminder: File exists but has empty contents"
"""An empty result would look like a failed read."""

_MAX_LINE_BYTES = 4 * MAX_RESULT_CHARACTERS
"""The part of a line that is kept: no more fits a result, of whatever characters."""

_CONTINUATION = bytes(range(0x80, 0xC0))
"""UTF-8's bytes after the first of a character."""


@dataclass
class _Line:
    """The beginning of a line, and how many characters follow it."""

    data: bytes = b""
    left_out: int = 0

    def append(self, data: bytes) -> None:
        kept = data[: _MAX_LINE_BYTES - len(self.data)]
        self.data += kept
        self.left_out += len(data[len(kept) :].translate(None, _CONTINUATION))

    def text(self) -> tuple[str, bool]:
        """Return the text without a final carriage return, and whether it is not all UTF-8."""
        decoder = codecs.getincrementaldecoder("utf-8")
        is_whole = not self.left_out
        try:
            return decoder().decode(self.data, final=is_whole).removesuffix("\r"), False
        except UnicodeDecodeError:
            return decoder("replace").decode(self.data, final=is_whole).removesuffix("\r"), True


class LineWindow:
    """Collects lines from the blocks of a file, and holds little more than one result of them.

    Args:
        offset: How many lines to skip.
        limit: How many lines to collect at most.
    """

    def __init__(self, offset: int, limit: int) -> None:
        self._offset, self._limit = offset, limit
        self._lines: list[_Line] = []
        self._kept_bytes = 0
        self._line_ends = 0
        self._ends_with_line = True
        self.lossy = False
        """Whether some shown bytes are not UTF-8 and are shown as U+FFFD."""

    @property
    def lines_read(self) -> int:
        """How many lines have begun so far."""
        return self._line_ends + (not self._ends_with_line)

    @property
    def has_lines(self) -> bool:
        """Whether there is something to show."""
        return bool(self._lines)

    @property
    def is_full(self) -> bool:
        """Whether a line has begun that cannot be shown."""
        return self._takes_no_more() and self.lines_read > self._offset + len(self._lines)

    def _takes_no_more(self) -> bool:
        return len(self._lines) >= self._limit or self._kept_bytes > _MAX_LINE_BYTES

    def add(self, block: bytes) -> None:
        """Take the next block of the file."""
        if not block:
            return
        before, self._line_ends = self._line_ends, self._line_ends + block.count(b"\n")
        self._ends_with_line = block.endswith(b"\n")
        if self._line_ends < self._offset:
            return
        if before < self._offset:
            block = block.split(b"\n", self._offset - before)[-1]
        first = max(0, before - self._offset)
        room = max(0, self._limit - first)
        *pieces, rest = block.split(b"\n", room)
        if len(pieces) < room and rest:  # the block ends within a line that can be shown
            pieces.append(rest)
        for index, piece in enumerate(pieces, first):
            if index == len(self._lines) and not self._takes_no_more():
                self._lines.append(_Line())
            if index >= len(self._lines):
                return
            self._lines[index].append(piece)
            self._kept_bytes += min(len(piece), _MAX_LINE_BYTES)

    def content(self, *, is_whole: bool) -> str:
        """Return the lines with their numbers in the form of `cat -n`, and where to read on.

        Args:
            is_whole: Whether every block of the file was added.

        Raises:
            ToolMistake: The offset is past the end.
        """
        if is_whole and not self.lines_read:
            return EMPTY_FILE
        if not self._lines:
            raise ToolMistake(
                f"offset={self._offset} is past the end: the file has {self.lines_read} lines."
            )
        shown: list[str] = []
        left, next_line = MAX_RESULT_CHARACTERS, self._offset
        for line in self._lines:
            text, is_lossy = line.text()
            if not next_line:
                _, text = split_byte_order_mark(text)
            rows = _rows(text, next_line + 1)
            size = sum(map(len, rows)) + len(rows)
            if size > left and shown:
                break
            self.lossy = self.lossy or is_lossy
            next_line += 1
            shown += _cut(rows, next_line, line.left_out) if size > left else rows
            left -= size
        more = self.lines_read - next_line
        if not is_whole:
            shown.append(f"... (more follows. Use offset={next_line} to continue reading)")
        elif more:
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


def _cut(rows: list[str], number: int, left_out: int) -> list[str]:
    """Return as many chunks of one huge line as fit; some always do."""
    fitting = MAX_RESULT_CHARACTERS // (MAX_LINE_CHARACTERS + 2 * LINE_NUMBER_WIDTH)
    left_out += sum(len(row.partition("\t")[2]) for row in rows[fitting:])
    return [*rows[:fitting], f"... (line {number} is cut here: {left_out} more characters in it)"]
