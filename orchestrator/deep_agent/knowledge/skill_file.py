"""One SKILL.md: what stands at its head, and whether it keeps the rules of the format.

The rules for the fields are ADK's `Frontmatter` (agentskills.io); what is added here holds for any
backend: the name is the folder's, and sizes are bounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml
from google.adk.skills import Frontmatter
from pydantic import ValidationError

from orchestrator.shortening import one_line

SKILL_FILE = "SKILL.md"

MAX_SKILL_BYTES = 10 * 1024**2
"""A larger SKILL.md is no instruction; read_file has the same limit."""

MAX_HEAD_BYTES = 16 * 1024
"""Within these the front matter has to end: several times what the fields' own limits add up to."""

_HEAD = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_FIELDS = ("name", "description", "compatibility", "allowed-tools")


@dataclass(frozen=True, kw_only=True)
class Skill:
    """What an agent is told of a skill before it reads it."""

    name: str
    description: str
    compatibility: str = ""
    allowed_tools: str = ""
    """A hint only: which tools an agent has is not for a file to say."""


class _BadSkill(ValueError):
    """A SKILL.md breaks a rule; the text says which and repeats nothing of the file."""


@lru_cache(maxsize=256)
def parse_skill(head: bytes, folder: str) -> Skill | str:
    """The skill at the head of a SKILL.md in a folder of that name, or in words which rule it breaks.

    Remembered by content, because the same files are looked at before every model call.
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
        raise _BadSkill(_in_words(error)) from None
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
    """The fields that an agent is told of; others are another program's."""
    try:
        data = yaml.safe_load(text)
    except (
        yaml.YAMLError,
        RecursionError,
        ValueError,
    ) as error:  # ValueError: an impossible date, say
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 2}" if mark else ""
        raise _BadSkill(f"its front matter is not YAML{place}") from None
    if not isinstance(data, dict):
        raise _BadSkill("its front matter is not a mapping")
    fields = {name: data[name] for name in _FIELDS if data.get(name) is not None}
    tools = fields.get("allowed-tools")
    if isinstance(tools, list):  # the format has a string of names; a list is a common slip
        fields["allowed-tools"] = " ".join(map(str, tools))
    return fields


def _in_words(error: ValidationError) -> str:
    """The first fault as ADK's rule says it.

    The rules name limits and never what stands in the file.
    """
    fault = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(map(str, fault["loc"]))
    message = str(fault["msg"]).removeprefix("Value error, ")
    return message if message.startswith(field) else f"{field}: {message}"
