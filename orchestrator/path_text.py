r"""File names as text: any name of a file system, in a form that every text can hold.

A name is a sequence of bytes, and not every one is UTF-8. Outside of the operating system and of
Git, a path is therefore its *path text*: the name itself, in which a byte that is not UTF-8 is
written as `\xNN` (two lower-case hexadecimal digits), for example `caf\xe9.txt`. The backslash of a
name that has `\x` itself is written as `\x5c`, so that two names never have one text. Tools,
results, journals and pages have path texts; code that calls the operating system or Git converts
them.
"""

from __future__ import annotations

import base64
import re

from .valid_text import clean_text

_ESCAPED = re.compile(rb"\\x([89a-f][0-9a-f]|5c)", re.IGNORECASE)
"""ASCII characters except the backslash are never escaped, so `/`, `.` and NUL cannot be hidden."""

_ESCAPE_IN_GLOB = re.compile(r"\\(?=x(?:[89a-f][0-9a-f]|5c))")


def path_text(path: str | bytes) -> str:
    """Return the path text of a path.

    Args:
        path: The path in the operating system's form: bytes, or a text in which bytes that are not
            UTF-8 are surrogates (PEP 383).
    """
    if isinstance(path, str):
        if path.isascii() and "\\x" not in path:
            return path
        path = _encoded(path)
    return path.replace(rb"\x", rb"\x5cx").decode("utf-8", "backslashreplace")


def path_bytes(text: str) -> bytes:
    """Return the bytes of a path from its path text; any text is a path text."""
    raw = _encoded(text)
    if b"\\" not in raw:
        return raw
    return _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), raw)


def os_path(text: str) -> str:
    """Return the path of a path text, in the form that the functions of `os` take."""
    if text.isascii() and "\\" not in text:
        return text
    return path_bytes(text).decode("utf-8", "surrogateescape")


def normal_path_text(text: str) -> str:
    r"""Return the normal path text of the path that a text names.

    A person or a model may write others, such as `\xE9`, or `\xc3\xa9` for `é`.
    """
    return path_text(path_bytes(text))


def path_glob(pattern: str) -> str:
    """Return a glob pattern for path texts, which matches their escapes literally."""
    return _ESCAPE_IN_GLOB.sub(r"\\\\", pattern)


def differing_bytes(text: str) -> str | None:
    """Return the bytes of a path in Base64; None when they are those of its path text."""
    if "\\" not in text:
        return None
    raw = path_bytes(text)
    return None if raw == text.encode() else base64.b64encode(raw).decode("ascii")


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate without a byte: no file has such a name
        return clean_text(text).encode()
