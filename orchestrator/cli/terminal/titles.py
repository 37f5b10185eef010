"""Titles of rows, made to fit the width that there is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from rich.cells import cell_len, set_cell_size

from fanout.orchestrator.shortening import common_prefix

LEAST_SHARED = 8
"""Characters of a shared beginning that is left out: of a shorter one, little is gained."""

_BOUNDARY = re.compile(r"[\W_]")
"""What ends a word, or a part of a path or of a name."""


def fitted_titles(texts: Sequence[str], cells: int) -> list[str]:
    """Return titles that are at most so many cells wide, and tell the jobs apart.

    Where a title is too wide, the beginning that it shares with its likest neighbour is left out,
    whole words or parts of paths: twenty rows that read "Look at module …" say nothing.
    """
    if max(map(cell_len, texts), default=0) <= cells:
        return list(texts)
    shared = _shared_characters(texts)
    return [
        text if cell_len(text) <= cells else _cut(_without(text, shared[text]), cells)
        for text in texts
    ]


def _shared_characters(texts: Sequence[str]) -> dict[str, int]:
    """Return how many characters at its beginning each text shares with another one."""
    ordered = sorted(set(texts))
    shared = dict.fromkeys(ordered, 0)
    for left, right in pairwise(ordered):
        length = common_prefix(left, right)
        shared[left] = max(shared[left], length)
        shared[right] = max(shared[right], length)
    return shared


def _without(text: str, shared: int) -> str:
    indent = len(text) - len(text.lstrip())
    begin = max((found.end() for found in _BOUNDARY.finditer(text, 0, shared)), default=0)
    return f"{text[:indent]}…{text[begin:]}" if begin - indent >= LEAST_SHARED else text


def _cut(text: str, cells: int) -> str:
    if cell_len(text) <= cells:
        return text
    return set_cell_size(text, max(0, cells - 1)).rstrip() + "…" if cells > 0 else ""
