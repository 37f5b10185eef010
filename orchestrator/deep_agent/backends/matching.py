"""Which paths a glob pattern means, and which lines a text is in: one rule for every backend."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Iterable, Iterator

import regex
from wcmatch import glob as wcglob

from orchestrator.deep_agent.backends.protocol import Entry, Hit
from orchestrator.deep_agent.failures import ToolMistake

MAX_PATTERN_CHARACTERS = 500
"""Long enough for any pattern a person writes; a pattern is compiled to a regular expression."""

MAX_ALTERNATIVES = 200
"""How many patterns braces may stand for: `{1..1000000}` would compile a million."""

MAX_GLOBSTARS = 6
"""Each `**` multiplies the ways in which a path can fail to match."""

MAX_LINE_CHARACTERS = 2_000
"""How much of a found line is kept: minified files have lines of megabytes."""

BINARY_PROBE_BYTES = 8 * 1024
"""A NUL in here means binary: git's rule, and cheap."""

_LEAST_SECONDS = 0.001
"""`regex` takes no time limit of nothing."""

_FLAGS = wcglob.GLOBSTAR | wcglob.BRACE


def matcher(pattern: str) -> Callable[[str, float], bool]:
    """A test of paths relative to the searched directory.

    ToolMistake when the pattern cannot be used.

    It takes the path and a deadline of `time.monotonic`, past which it raises TimeoutError. `*`
    stays within one directory, `**` crosses them, names that start with a dot need a dot in the
    pattern.
    """
    if not pattern or len(pattern) > MAX_PATTERN_CHARACTERS or "\0" in pattern:
        raise ToolMistake(f"A glob pattern has 1 to {MAX_PATTERN_CHARACTERS} characters.")
    if ".." in pattern.split("/") or pattern.startswith("~"):
        raise ToolMistake(f"Path traversal not allowed: {pattern}")
    if pattern.count("**") > MAX_GLOBSTARS:
        raise ToolMistake(f"A glob pattern may hold at most {MAX_GLOBSTARS} '**'.")
    try:
        # `re` holds up all threads until it has an answer, which some patterns delay for hours.
        translated = wcglob.translate(pattern, flags=_FLAGS, limit=MAX_ALTERNATIVES)[0]
        accepted = [regex.compile(each) for each in translated]
    except Exception as error:  # noqa: BLE001 - the class of "too many alternatives" is private
        raise ToolMistake(f"Not a usable glob pattern: {pattern} ({error})") from None

    def matches(path: str, deadline: float) -> bool:
        left = max(deadline - time.monotonic(), _LEAST_SECONDS)
        return any(each.match(path, timeout=left) for each in accepted)

    return matches


def select(
    entries: Iterable[Entry], pattern: str, base: str, *, deadline: float
) -> tuple[list[Entry], bool]:
    """The entries that match, and whether all were looked at before the deadline (of `time.monotonic`).

    A pattern that starts with `/` is matched against the whole path, any other against the path
    below `base`.
    """
    if pattern.startswith("/"):
        base, pattern = "/", pattern.lstrip("/")
    matches = matcher(pattern)
    found: list[Entry] = []
    for entry in entries:
        if time.monotonic() > deadline:
            return found, False
        try:
            if matches(posixpath.relpath(entry.path, base), deadline):
                found.append(entry)
        except TimeoutError:
            return found, False
    return found, True


def filter_pattern(glob: str) -> str:
    """A grep filter as a glob pattern: without a slash it means the file name, at any depth."""
    return glob if "/" in glob else f"**/{glob}"


def is_binary(data: bytes) -> bool:
    """Whether a file that starts like this is not text."""
    return b"\0" in data[:BINARY_PROBE_BYTES]


def hits_in(blocks: Iterable[bytes], text: str, path: str) -> Iterator[Hit]:
    """Find the lines of a file that contain a text, from the first; none of a binary file.

    Args:
        blocks: the content, whole or in parts that end with a line.
        text: what to look for.
        path: the file's name in the hits.
    """
    needle = text.encode()
    if not needle or b"\n" in needle:
        return
    line_number, is_first = 1, True
    for block in blocks:
        if is_first and is_binary(block):
            return
        is_first, counted_to = False, 0
        at = block.find(needle)
        while at != -1:
            line_number += block.count(b"\n", counted_to, at)
            start = block.rfind(b"\n", 0, at) + 1
            end = block.find(b"\n", at)
            end = len(block) if end == -1 else end
            line = block[start : min(end, start + 4 * MAX_LINE_CHARACTERS)].decode(errors="replace")
            yield Hit(
                path=path, line_number=line_number, line=line.rstrip("\r")[:MAX_LINE_CHARACTERS]
            )
            counted_to = at
            at = block.find(needle, end)
        line_number += block.count(b"\n", counted_to)
