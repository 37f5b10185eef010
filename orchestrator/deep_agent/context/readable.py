"""Results of tools as text that can be read in pages.

Nothing is left out: only line breaks and JSON's indentation are added.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

LINE_CHARACTERS = 2_000
"""Longer lines are wrapped: read_file and grep show whole lines, and one line must leave room for
others."""

WORD_CHARACTERS = 100
"""A line is wrapped after a space if there is one this close to its end."""

TEXT_CHARACTERS = 200
"""A longer text, or one of several lines, is printed below its JSON, with its own line breaks."""


def readable(value: Any) -> str:
    """Return a value as text."""
    if isinstance(value, str):
        return _wrapped(_laid_out(value))
    if not isinstance(value, Mapping):
        return _wrapped(_json(value))
    texts = {name: text for name, text in value.items() if isinstance(text, str) and _is_long(text)}
    rest = {name: "(below)" if name in texts else item for name, item in value.items()}
    below = [f"--- {name} ---\n{_laid_out(text)}" for name, text in texts.items()]
    return _wrapped("\n".join([_json(rest), *below]))


def _is_long(text: str) -> bool:
    return "\n" in text or len(text) > TEXT_CHARACTERS


def _laid_out(text: str) -> str:
    """Indent JSON that is one long line; return any other text unchanged."""
    if len(text) <= LINE_CHARACTERS or text.lstrip()[:1] not in {"{", "["}:
        return text
    try:
        return _json(json.loads(text))
    except (ValueError, RecursionError):
        return text


def _json(value: Any) -> str:
    try:
        return json.dumps(value, indent=1, ensure_ascii=False, default=str)
    except (ValueError, TypeError, RecursionError):  # a cycle, or keys that are not valid in JSON
        return str(value)


def _wrapped(text: str) -> str:
    lines = text.split("\n")
    if max(map(len, lines)) <= LINE_CHARACTERS:
        return text
    return "\n".join(piece for line in lines for piece in _pieces(line))


def _pieces(line: str) -> Iterator[str]:
    start = 0
    while len(line) - start > LINE_CHARACTERS:
        end = start + LINE_CHARACTERS
        space = line.rfind(" ", end - WORD_CHARACTERS, end)
        end = end if space < 0 else space + 1
        yield line[start:end]
        start = end
    yield line[start:]
