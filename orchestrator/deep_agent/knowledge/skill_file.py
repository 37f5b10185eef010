"""Parses the front matter of a SKILL.md and checks it against the rules of the format.

The rules for the fields are those of ADK's `Frontmatter` (agentskills.io). For every backend, the
name must be the folder's, and sizes are limited.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml
from google.adk.skills import Frontmatter
from pydantic import ValidationError

from fanout.orchestrator.shortening import one_line

SKILL_FILE = "SKILL.md"

MAX_SKILL_BYTES = 10 * 1024**2
"""A larger SKILL.md is not an instruction; read_file has the same limit."""

MAX_HEAD_BYTES = 16 * 1024
"""The front matter must end within this: several times the sum of the fields' own limits."""

_HEAD = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_FIELDS = ("name", "description", "compatibility", "allowed-tools")


@dataclass(frozen=True, kw_only=True)
class Skill:
    """What the agent's instruction says of a skill."""

    name: str
    description: str
    compatibility: str = ""
    allowed_tools: str = ""
    """Only a hint: a file cannot give an agent tools."""


class _BadSkill(ValueError):
    """A SKILL.md breaks a rule; the message says which, and quotes nothing of the file."""


@lru_cache(maxsize=256)
def parse_skill(head: bytes, folder: str) -> Skill | str:
    """Return the skill that a SKILL.md describes, or a message about the rule that it breaks.

    The results are cached by content, because the same files are read before every model call.

    Args:
        head: The beginning of the file.
        folder: The name of its folder.
    """
    try:
        return _parsed(head, folder)
    except _BadSkill as fault:
        return str(fault)


def _parsed(head: bytes, folder: str) -> Skill:
    found = _HEAD.match(head.decode(errors="replace"))
    if found is None:
        raise _BadSkill(
            f"it does not begin with front matter between two lines --- in {MAX_HEAD_BYTES} bytes"
        )
    fields = _fields(found[1])
    try:
        front = Frontmatter.model_validate(fields)
    except ValidationError as error:
        raise _BadSkill(_format_error(error)) from None
    if not _NAME.fullmatch(folder) or front.name != folder:
        raise _BadSkill("its name is not the name of its folder")
    if not front.description.strip():
        raise _BadSkill("description must not be empty")
    return Skill(
        name=front.name,
        description=one_line(front.description),
        compatibility=one_line(front.compatibility or ""),
        allowed_tools=one_line(front.allowed_tools or ""),
    )


def _fields(text: str) -> dict[str, Any]:
    """Return the fields of the front matter that we use."""
    try:
        data = yaml.safe_load(text)
    # ValueError: an impossible date, for example
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 2}" if mark else ""
        raise _BadSkill(f"its front matter is not YAML{line}") from None
    if not isinstance(data, dict):
        raise _BadSkill("its front matter is not a mapping")
    fields = {name: data[name] for name in _FIELDS if data.get(name) is not None}
    tools = fields.get("allowed-tools")
    if isinstance(tools, list):  # the format has a string; a list is a common mistake
        fields["allowed-tools"] = " ".join(map(str, tools))
    return fields


def _format_error(error: ValidationError) -> str:
    """Return ADK's message for the first fault, which never quotes the file."""
    fault = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(map(str, fault["loc"]))
    message = str(fault["msg"]).removeprefix("Value error, ")
    return message if message.startswith(field) else f"{field}: {message}"
