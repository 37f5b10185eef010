"""The parts of a patch by file, as the page shows them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

_BEGIN = re.compile(rb"^diff --git ", re.MULTILINE)
"""No line of content begins so: each has a space, a sign or the length of a binary line first."""
_NAMES = (b"rename to ", b"copy to ", b"+++ ", b"--- ")
_NONE = b"/dev/null"


def part_of(patch: bytes, path: str) -> bytes | None:
    """Return the part of a patch that changes one file; None when it changes none of this path."""
    return next((part for name, part in _parts(patch) if name == path), None)


def _parts(patch: bytes) -> Iterator[tuple[str, bytes]]:
    begins = [found.start() for found in _BEGIN.finditer(patch)]
    for begin, end in pairwise([*begins, len(patch)]):
        part = patch[begin:end]
        yield _path(part), part


def _path(part: bytes) -> str:
    """Return the path after the change that a part's header names."""
    header = part.split(b"\n@@ ", 1)[0].split(b"\n")
    for prefix in _NAMES:
        for line in header[1:]:
            name = line.removeprefix(prefix)
            if name not in (line, _NONE):
                is_prefixed = prefix in (b"+++ ", b"--- ")
                return _unquoted(name, prefix_length=2 if is_prefixed else 0)
    names = header[0].removeprefix(b"diff --git ")  # the same name twice: it is not renamed
    return _unquoted(names[len(names) // 2 + 1 :], prefix_length=2)


def _unquoted(name: bytes, prefix_length: int) -> str:
    """Return a path as Git means it: with quotes and escapes when it has unusual characters."""
    name = name.rstrip(b"\t\r")
    if name.startswith(b'"') and name.endswith(b'"'):
        name = name[1:-1].decode("unicode_escape").encode("latin-1", "replace")
    return name[prefix_length:].decode("utf-8", "surrogateescape")
