r"""Text that every encoding, file and service can hold.

A Python text may have half of a surrogate pair, for example of a JSON escape such as `\ud83d`
without its other half, and nothing can encode it. Text from outside is cleaned where it arrives.
The writers of logs, records and journals clean it once more, so that no text can make them fail.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
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
"""Characters, each of which begins a value in JSON."""

_JOINERS = r"\u200c\u200d\ufe0f"
_NEVER_SHOWN = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters except tab and line feed
    r"\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e"
    r"\u2060-\u206f\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    r"\ud800-\udfff"
)
_LETTER = rf"[^\x00-\x7f{_NEVER_SHOWN}\u200c\u200d"
"""The beginning of a class: a character beyond ASCII that a joiner may belong to."""
_HIDDEN = re.compile(
    rf"[{_NEVER_SHOWN}]"
    rf"|(?<!{_LETTER}\ufe0f])(?<![0-9#*])\ufe0f"
    rf"|(?<!{_LETTER}])[\u200c\u200d]|[\u200c\u200d](?!{_LETTER}\ufe0f])"
)
"""Characters that a terminal obeys, that change the order of what is read, or that nobody sees.

The joiners of scripts and emoji are kept in their proper places: one of them between characters
beyond ASCII, or after an emoji. The page has the same expression (`text.js`).
"""

_UNSEEN = re.compile(rf"{_HIDDEN.pattern}|[{_JOINERS}]|[^\S \n\t]")
"""The hidden characters, the joiners, and spaces that look like another one."""

_CONTROL_PICTURES = 0x2400
"""The symbol of the control character 0."""
_DELETE, _DELETE_PICTURE = "\x7f", "\u2421"


def printable(text: object) -> str:
    r"""Return foreign text with a visible sign for every character that is hidden or obeyed.

    It is for people: on a terminal, in a commit, in a question. Line ends and tabs stay. `␛` is an
    escape, `⟨U+202E⟩` a mark that changes the direction; a byte of a path that is not UTF-8 is
    shown as `\xNN`.
    """
    return _HIDDEN.sub(_sign, str(text).replace("\r\n", "\n"))


def escape_hidden(document: str) -> str:
    """Escape in JSON what `printable` replaces, and characters that look like others.

    Readers of JSON get the same value.
    """
    return _UNSEEN.sub(_escape, document)


def _sign(found: re.Match[str]) -> str:
    character, code = found[0], ord(found[0])
    if "\udc80" <= character <= "\udcff":
        return f"\\x{code - 0xDC00:02x}"
    if character < " ":
        return chr(_CONTROL_PICTURES + code)
    return _DELETE_PICTURE if character == _DELETE else f"\u27e8U+{code:04X}\u27e9"


def _escape(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1] if found[0] != _DELETE else "\\u007f"


def clean_text(text: str) -> str:
    """Return a text without surrogates: two halves that follow each other become their character.

    A half without the other becomes U+FFFD. A valid text is returned unchanged.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def clean(value: Any) -> Any:
    """Return a value with all texts in its dicts, lists and tuples cleaned, keys included.

    A valid value is returned unchanged, not as a copy. Values of other types are not searched. If
    cleaning makes keys equal, the later ones get a number, so that no value is lost.
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
    """Return a sentence for the owner of a file that is not UTF-8."""
    line = error.object.count(b"\n", 0, error.start) + 1
    return f"line {line} is not UTF-8: save the file as UTF-8"


def clean_json(data: bytes) -> bytes:
    r"""Return JSON whose texts every reader accepts.

    Strict readers refuse the whole of it for an escaped half of a surrogate pair, such as `\ud83d`,
    or for a byte that is not UTF-8. Data that is not JSON, and JSON in UTF-16, are not changed.
    """
    if not data.isascii() and json.detect_encoding(data) == "utf-8":
        data = data.decode("utf-8", "replace").encode()
    if b"\\u" not in data:
        return data
    return _ESCAPE.sub(lambda found: rb"\ufffd" if found["half"] else found[0], data)


def count_values(data: bytes, most: int) -> int:
    """Return about how many values JSON has, without parsing it; exactly only beyond `most`."""
    values = sum(map(data.count, _SIGNS))
    if values <= most or b'"' not in data:
        return values
    return sum(map(_STRING.sub(b"", data).count, _SIGNS))


def unused_key(key: Any, taken: Collection[Any], form: str = "{key} ({number})") -> Any:
    """Return a key that is not taken: this one, or the first of this form that is not."""
    number, unused = 1, key
    while unused in taken:
        number += 1
        unused = form.format(key=key, number=number)
    return unused


def _clean_mapping(value: Mapping[Any, Any]) -> Mapping[Any, Any]:
    pairs = [(key, clean(key), inner, clean(inner)) for key, inner in value.items()]
    if all(key is new_key and inner is new for key, new_key, inner, new in pairs):
        return value
    taken = {key for key, new_key, _, _ in pairs if new_key is key}
    cleaned: dict[Any, Any] = {}
    for key, new_key, _, new in pairs:
        unique = new_key if new_key is key else unused_key(new_key, taken)
        taken.add(unique)
        cleaned[unique] = new
    return cleaned
