"""The sizes of what is stored in Redis: whatever a job does, no record exceeds 256 KiB.

A record is the hash of a job, an entry of its journal, an open approval, or a message. Each part of
one has its own bound here. What is larger is cut where people only look at it, becomes a blob where
it is needed whole, and is refused where a person or a model can send less.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import JsonValue

KIB = 1024
MAX_RECORD_BYTES = 256 * KIB
"""The largest record. Redis answers nobody else while it copies one, and every reader holds it."""
MAX_SPEC_BYTES = 100 * KIB
"""The largest specification of a job as JSON: together with a result it fits into the largest
record. Longer texts belong in files of the workspace."""
MAX_LISTED_BYTES = 32 * KIB
"""The largest list of changed files in a result, some 300 files; the change bundle lists all."""
MAX_OUTPUT_BYTES = 32 * KIB
"""The largest structured answer as JSON; larger results belong in files."""
MAX_UNREAD_BYTES = 12 * KIB
"""The bytes of a result for the beginnings of unread messages."""
MAX_REASON_CHARACTERS = 2_000
"""The longest message of an error, and the longest reason for which a job was requeued."""
MAX_NOTE_BYTES = 64 * KIB
"""The largest size of those parts of a journal entry that people read."""
MAX_EVENT_BYTES = 32 * KIB
"""The largest agent event inside a journal entry, and the largest payload in Redis; larger ones are
stored as blobs."""
MAX_KEY_CHARACTERS = 1_000
"""The longest idempotency key, which is part of a key of Redis."""

MAX_NAME_CHARACTERS = 200
"""The longest name of a field that is shown; no name that a person chose is longer."""
_STEPS = ((8_000, 400), (2_000, 100), (500, 30), (100, 10), (20, 4))
"""Characters of a text and items of a list, tried one after the other."""
_MAX_DEPTH = 12
"""The deepest nesting of a value that is cut; JSON that people read is not deeper."""


def json_bytes(value: Any) -> int:
    """Return the size of a value as the journal stores it: JSON in ASCII."""
    return len(json.dumps(value, default=str))


def fit(value: JsonValue, max_bytes: int) -> JsonValue:
    """Return a value, with long texts and lists cut until its JSON has at most that size.

    What is left out is counted at its place: "… (and 37,990 more)".

    Args:
        value: A JSON value.
        max_bytes: The maximum size of its JSON.
    """
    cut = value
    for characters, items in _STEPS:
        if _fits(cut, max_bytes):
            return cut
        cut = _cut(value, characters, items, _MAX_DEPTH)
    return cut if _fits(cut, max_bytes) else "… (too large to show)"


def _fits(value: JsonValue, max_bytes: int) -> bool:
    try:
        return json_bytes(value) <= max_bytes
    except RecursionError:
        return False


def _cut(value: Any, characters: int, items: int, depth: int) -> JsonValue:
    if isinstance(value, str):
        return cut_text(value, characters)
    if not isinstance(value, (list, tuple, dict)):
        return value if value is None or isinstance(value, (bool, int, float)) else str(value)
    if depth == 0:
        return "…"
    more = len(value) - items
    if isinstance(value, dict):
        kept = list(value.items())[:items]
        pairs = {
            cut_text(str(name), MAX_NAME_CHARACTERS): _cut(inner, characters, items, depth - 1)
            for name, inner in kept
        }
        return pairs | ({"…": f"and {more:,} more"} if more > 0 else {})
    shown = [_cut(inner, characters, items, depth - 1) for inner in value[:items]]
    return [*shown, f"… (and {more:,} more)"] if more > 0 else shown


def cut_text(text: str, characters: int) -> str:
    """Return a text cut to a length, with the number of characters that were left out."""
    more = len(text) - characters
    return text if more <= 0 else f"{text[:characters]}… (and {more:,} more characters)"
