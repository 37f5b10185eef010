"""Texts in the form in which Git stores and merges them.

In a work tree a text may have other line ends, or another encoding, than in a commit, if attributes
say so (`text`, `eol`, `working-tree-encoding`). Git merges the stored form.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable

from .attributes import MergeRule
from .text_merge import is_text

_BOMS = {
    "UTF-16": {codecs.BOM_UTF16_LE: "UTF-16LE"},
    "UTF-32": {codecs.BOM_UTF32_LE: "UTF-32LE"},
}
"""Encodings whose byte order is shown by the first bytes; otherwise it is big-endian."""


MergeTexts = Callable[[bytes | None, bytes, bytes], bytes | None]
"""Merges two texts with their common origin, which is None if both sides added the file: the
origin, the text to change, and the changed origin. None: the text has the change already."""


def merge_either_form(rule: MergeRule, merge: MergeTexts, conflict: type[Exception]) -> MergeTexts:
    """Return what merges texts as the work tree has them and, if they conflict, as Git does.

    Args:
        rule: The rule of the file.
        merge: Merges texts of one form.
        conflict: What `merge` raises if the sides conflict; the returned function raises it, too.
    """

    def merge_forms(base: bytes | None, ours: bytes, theirs: bytes) -> bytes | None:
        stored = _stored_sides(rule, (base, ours, theirs))
        if rule.how != "union" or stored is None:  # a union would have each line twice
            try:
                return merge(base, ours, theirs)
            except conflict:
                if stored is None:
                    raise
        merged = merge(*stored)
        return None if merged is None else _in_work_tree(rule, merged, ours)

    return merge_forms


def _stored_sides(
    rule: MergeRule, sides: tuple[bytes | None, bytes, bytes]
) -> tuple[bytes | None, bytes, bytes] | None:
    """Return the sides of a merge as Git stores them; None if that is what they are."""
    base, ours, theirs = sides
    try:
        stored = (
            None if base is None else _stored(rule, base),
            _stored(rule, ours),
            _stored(rule, theirs),
        )
    except (ValueError, LookupError):  # another encoding than the attribute says, or an unknown one
        return None
    return None if stored == sides else stored


def _in_work_tree(rule: MergeRule, stored: bytes, ours: bytes) -> bytes:
    """Return a merged text with the line ends and the encoding of the text that it replaces."""
    codec = _codec(rule.encoding, ours)
    first_line = ours.decode(codec).partition("\n")
    if rule.normalizes_line_ends and first_line[1] and first_line[0].endswith("\r"):
        stored = stored.replace(b"\n", b"\r\n")
    return stored if rule.encoding is None else stored.decode().encode(codec)


def _stored(rule: MergeRule, content: bytes) -> bytes:
    if rule.encoding is not None:
        content = content.decode(_codec(rule.encoding, content)).encode()
    if rule.normalizes_line_ends and is_text(content):
        content = content.replace(b"\r\n", b"\n")
    return content


def _codec(encoding: str | None, content: bytes) -> str:
    """Return the codec of a text; a byte order mark is a character of it."""
    if encoding is None:
        return "latin-1"
    name = encoding.upper().removesuffix("-BOM")
    if name not in _BOMS:
        return name
    return next(
        (codec for bom, codec in _BOMS[name].items() if content.startswith(bom)), f"{name}BE"
    )
