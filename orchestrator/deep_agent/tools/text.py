"""Editing of files' text: pure functions."""

from __future__ import annotations

from fanout.orchestrator.deep_agent.failures import ToolMistake

MAX_RESULT_CHARACTERS = 80_000
"""About 20,000 tokens, the most that one tool result may take of a model's context."""


def replaced(text: str, old: str, new: str, *, replace_all: bool) -> tuple[str, int]:
    """Return a text with `old` replaced by `new`, in the file's line ends, and how often it was.

    Args:
        text: A file's text.
        old: The text to replace.
        new: The text in its place.
        replace_all: Replace every occurrence; otherwise there must be exactly one.

    Raises:
        ToolMistake: `old` is empty, equals `new`, is missing or not unique.
    """
    if not old:
        raise ToolMistake("old_string is empty. Give the exact text to replace.")
    if old == new:
        raise ToolMistake("old_string and new_string are identical")
    old, new = _with_line_ends_of(text, old, new)
    occurrences = text.count(old)
    if not occurrences:
        raise ToolMistake("old_string not found in file content")
    if occurrences > 1 and not replace_all:
        raise ToolMistake(
            f"old_string appears {occurrences} times. Provide more context to make it unique, "
            "or set replace_all=True."
        )
    return text.replace(old, new), occurrences


def _with_line_ends_of(text: str, old: str, new: str) -> tuple[str, str]:
    """Return both texts with the file's line ends: the model does not see carriage returns."""
    breaks, crlf_breaks = text.count("\n"), text.count("\r\n")
    all_crlf = crlf_breaks > 0 and breaks == crlf_breaks
    if all_crlf or (old not in text and crlf_breaks and _crlf(old) in text):
        return _crlf(old), _crlf(new)
    if old not in text and _lf(old) in text:
        return _lf(old), _lf(new)
    return old, new


def _lf(text: str) -> str:
    return text.replace("\r\n", "\n")


def _crlf(text: str) -> str:
    return _lf(text).replace("\n", "\r\n")
