"""The front matter of a Markdown file: YAML, or what its author meant as YAML.

People write `description: Use when: …`, which YAML refuses, tabs, and values such as `no` and
`1.0`, which YAML turns into something else. Here every value is the text that was written.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from fanout.orchestrator.valid_text import clean_text

MAX_DEPTH = 64
"""Of lists and mappings in each other: twice as deep as any written by hand."""

_BEGINNING = re.compile(r"\A\ufeff?(?:[ \t]*\n)*---[ \t]*\n")
_END = re.compile(r"^(?:---|\.\.\.)[ \t]*$", re.MULTILINE)
_END_WITHOUT_A_LINE = re.compile(r"^[ \t]*$|^#", re.MULTILINE)
_FIELD = re.compile(r"([A-Za-z][\w-]*)[ \t]*:(?:[ \t]+(.*))?$")
_BLOCK_SCALAR = re.compile(r"[|>][+-]?\d?[+-]?")


class NoFrontMatter(ValueError):
    """A text has no front matter; the message says why, and quotes nothing of the text."""


@dataclass(frozen=True)
class FrontMatter:
    """The front matter of a text."""

    fields: Mapping[str, Any]
    """By their names in lower case, with hyphens; a value is a text, a list or a mapping."""
    fault: str = ""
    """Why it is not YAML; empty if it is."""


def front_matter(text: str, *, texts: Collection[str]) -> FrontMatter:
    """Return the front matter of a text.

    Args:
        text: The whole text, or its beginning.
        texts: The fields that are meant to be texts, also if YAML makes a mapping of one.

    Raises:
        NoFrontMatter: The text does not begin with any, or with something that has no fields.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    beginning = _BEGINNING.match(text)
    if beginning is None:
        raise NoFrontMatter("it does not begin with front matter between two lines ---")
    # Without a second line --- it ends where the text begins.
    end = _END.search(text, beginning.end()) or _END_WITHOUT_A_LINE.search(text, beginning.end())
    inside = text[beginning.end() : end.start() if end else None]
    fault = ""
    try:
        fields = yaml.load(inside, _Loader)  # noqa: S506 - it makes texts, lists, mappings
    except (yaml.YAMLError, RecursionError) as error:
        fields = None
        mark = getattr(error, "problem_mark", None)
        fault = "its front matter is not YAML" + (f", line {mark.line + 2}" if mark else "")
    by_line = _fields_by_line(inside)
    if not isinstance(fields, dict):
        fields = by_line
    if not fields:
        raise NoFrontMatter(fault or "its front matter is not a mapping")
    named = {_standard_name(name): value for name, value in fields.items()}
    for name, value in by_line.items():
        standard = _standard_name(name)
        if standard in texts and isinstance(named.get(standard), dict):
            named[standard] = value
    return FrontMatter(named, fault)


class _Loader(yaml.BaseLoader):
    """Replaces what no text can hold, such as the escaped half of a surrogate pair."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next node; the time of those in it grows with the square of their depth."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise yaml.YAMLError("it is nested too deeply")
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_scalar(self, node: yaml.ScalarNode) -> str:
        """Return the text of a node."""
        return clean_text(str(super().construct_scalar(node)))


def _standard_name(name: Any) -> str:
    return str(name).lower().replace("_", "-")


def _fields_by_line(text: str) -> dict[str, Any]:
    """Return the fields whose names begin a line.

    The lines after it belong to a field, those that are not indented until a blank one.
    """
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.split("\n"):
        field = _FIELD.fullmatch(line.rstrip())
        if field is not None:
            lines = [field[2] or ""]
            found.setdefault(field[1], lines)
        elif line.startswith((" ", "\t")) or "" not in lines[1:]:
            lines.append(line.rstrip())
    return {name: _value(first, rest) for name, (first, *rest) in found.items()}


def _value(first: str, rest: list[str]) -> Any:
    """Return a value: what YAML makes of it alone, else the text as it is."""
    if _BLOCK_SCALAR.fullmatch(first.strip()):
        return textwrap.dedent("\n".join(line.expandtabs(2) for line in rest)).strip("\n")
    text = "\n".join([first, *rest]).expandtabs(2).strip()
    try:
        value = yaml.load(text, _Loader)  # noqa: S506 - as above
    except (yaml.YAMLError, RecursionError):
        value = None
    is_plain_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return value if isinstance(value, str) or is_plain_list else text
