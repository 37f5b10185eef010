"""The lines of a file that contain a text."""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING without the import, which every start would pay for
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import BinaryIO

MAX_LINE_BYTES = 2_000
"""A longer line is shown as an excerpt: minified files have lines of megabytes."""

SURROUNDINGS_BYTES = 500
"""The text on each side of a match in a long line: enough to recognise the place."""

CUT = "[…]"
"""The mark where a long line is cut."""

BINARY_PROBE_BYTES = 8 * 1024
"""A file with a NUL in its first bytes is binary: Git's rule, and a cheap check."""

MAX_NAMED_FILES = 10
"""Files that were not searched, by name: an agent wants to know which, not all of hundreds."""

_CONTINUATION = range(0x80, 0xC0)
"""The bytes of a UTF-8 character after its first."""


def is_binary(data: bytes) -> bool:
    """Return whether a file with these first bytes is binary."""
    return b"\0" in data[:BINARY_PROBE_BYTES]


def read_lines(file: BinaryIO, block_bytes: int, overlap: int) -> Iterator[bytes]:
    """Read a file in parts that end with a line; those of a longer line have bytes in common.

    Args:
        file: Open at its beginning.
        block_bytes: How much is read at once.
        overlap: How many bytes the parts of a split line have in common.
    """
    rest = b""
    while True:
        data = file.read(block_bytes)
        if not data:
            break
        block = rest + data
        cut = block.rfind(b"\n") + 1
        if cut:
            yield block[:cut]
        elif len(block) >= block_bytes:
            yield block
            cut = len(block) - overlap
        rest = block[cut:]
    if rest:
        yield rest


def find_lines(blocks: Iterable[bytes], text: bytes) -> Iterator[tuple[int, str]]:
    """Yield the number of each line that contains a text, and the line or an excerpt of it.

    Of a binary file it yields none. A line in several blocks may be yielded for each.

    Args:
        blocks: The content, whole or in parts that end with a line.
        text: The text, taken literally; nothing contains an empty one, or one with a line end.
    """
    if not text or b"\n" in text:
        return
    line_number, is_first = 1, True
    for block in blocks:
        if is_first and is_binary(block):
            return
        is_first, counted_to = False, 0
        at = block.find(text)
        while at != -1:
            line_number += block.count(b"\n", counted_to, at)
            start = block.rfind(b"\n", 0, at) + 1
            end = block.find(b"\n", at)
            end = len(block) if end == -1 else end
            yield line_number, _excerpt(block, start, end, at, at + len(text))
            counted_to = at
            at = block.find(text, end)
        line_number += block.count(b"\n", counted_to)


def _excerpt(block: bytes, start: int, end: int, match_start: int, match_end: int) -> str:
    """Return a line, or of a long one the match with its surroundings."""
    if end - start <= MAX_LINE_BYTES:
        return block[start:end].decode("utf-8", "replace").rstrip("\r")
    left = max(start, _character_start(block, max(start, match_start - SURROUNDINGS_BYTES)))
    right = _character_start(block, min(end, match_end + SURROUNDINGS_BYTES))
    text = block[left:right].decode("utf-8", "replace").rstrip("\r")
    return CUT * (left > start) + text + CUT * (right < end)


def _character_start(block: bytes, at: int) -> int:
    """Return where the UTF-8 character begins that a position is in; it has at most 4 bytes."""
    for start in range(at, max(at - 4, -1), -1):
        if start == len(block) or block[start] not in _CONTINUATION:
            return start
    return at
