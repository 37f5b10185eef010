r"""Text that every encoding, file and service can hold.

A Python text may have half of a surrogate pair, for example of a JSON escape such as `\ud83d`
without its other half, and nothing can encode it. Text of others is cleaned where it comes in;
those who write logs, records and journals clean once more, so that no text can make them fail.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb"|\\."
)
"""An escape of JSON: a surrogate pair, half of one, or any other."""


_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
"""A text in JSON."""
_SIGNS = (b",", b"[", b"{")
"""Each begins a value in JSON."""

_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters, direction marks and bytes that are no text, which control a terminal."""


def printable(text: object) -> str:
    r"""Replace the control characters of foreign text, except line ends and tabs.

    A byte of a path that is not UTF-8 is shown as `\xNN`.
    """
    return _CONTROL.sub(_replaced, str(text))


def escape_controls(document: str) -> str:
    """Escape the control characters that JSON allows in a text."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def _replaced(found: re.Match[str]) -> str:
    is_byte = "\udc80" <= found[0] <= "\udcff"
    return f"\\x{ord(found[0]) - 0xDC00:02x}" if is_byte else REPLACEMENT


def clean_text(text: str) -> str:
    """Return a text without surrogates: two halves that follow each other become their character.

    A half without the other becomes U+FFFD. A text that is valid is returned as it is.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def clean(value: Any) -> Any:
    """Return a value with all texts in its dicts, lists and tuples cleaned, keys included.

    What is valid is returned as it is, not as a copy. Values of other types are not looked into. Of
    keys that are equal when they are cleaned, the later ones get a number: no value is lost.
    """
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return _clean_mapping(value)
    if isinstance(value, (list, tuple)):
        cleaned = [clean(item) for item in value]
        if all(new is old for new, old in zip(cleaned, value, strict=True)):
            return value
        return cleaned if isinstance(value, list) else tuple(cleaned)
    return value


def not_utf_8(error: UnicodeDecodeError) -> str:
    """Return what a person has to know about a file of theirs that is not UTF-8."""
    line = error.object.count(b"\n", 0, error.start) + 1
    return f"line {line} is not UTF-8: save the file as UTF-8"


def clean_json(data: bytes) -> bytes:
    r"""Return JSON whose texts every reader takes.

    Strict readers refuse the whole of it for an escaped half of a surrogate pair, such as `\ud83d`,
    or for a byte that is not UTF-8. What is not JSON stays that, and JSON in UTF-16 stays as it is.
    """
    if not data.isascii() and json.detect_encoding(data) == "utf-8":
        data = data.decode("utf-8", "replace").encode()
    if b"\\u" not in data:
        return data
    return _ESCAPE.sub(lambda found: rb"\ufffd" if found["half"] else found[0], data)


def count_values(data: bytes, most: int) -> int:
    """Return about how many values JSON has, without parsing it; exactly only beyond `most`."""
    values = sum(map(data.count, _SIGNS))
    return sum(map(_STRING.sub(b"", data).count, _SIGNS)) if values > most else values


def _clean_mapping(value: Mapping[Any, Any]) -> Mapping[Any, Any]:
    pairs = [(key, clean(key), inner, clean(inner)) for key, inner in value.items()]
    if all(key is new_key and inner is new for key, new_key, inner, new in pairs):
        return value
    taken = {key for key, new_key, _, _ in pairs if new_key is key}
    cleaned: dict[Any, Any] = {}
    for key, new_key, _, new in pairs:
        unique = new_key if new_key is key else _unused(new_key, taken)
        taken.add(unique)
        cleaned[unique] = new
    return cleaned


def _unused(key: Any, taken: set[Any]) -> Any:
    number, unused = 1, key
    while unused in taken:
        number += 1
        unused = f"{key} ({number})"
    return unused
