"""Markdown for the generated pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; line breaks and bars in its cells are made harmless."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines) + "\n"


def code(text: object) -> str:
    """Return a text as code; nothing for an empty one."""
    return f"`{text}`" if str(text) else ""


def prose(text: str) -> str:
    """Return a docstring or a help text, whose names in angle brackets are not HTML."""
    parts = re.split(r"(``?[^`]+``?)", text)
    return "".join(
        part if index % 2 else re.sub(r"([<>*_])", r"\\\1", part)
        for index, part in enumerate(parts)
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
