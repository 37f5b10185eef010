"""Reads the front matter of a SKILL.md by the rules of the format (agentskills.io).

What the agent needs is a name and a description. A fault that leaves both clear is only told to the
person; a skill without them is left out.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fanout.orchestrator.deep_agent.knowledge.front_matter import NoFrontMatter, front_matter
from fanout.orchestrator.shortening import one_line

SKILL_FILES = ("SKILL.md", "skill.md")
"""The names of a skill's file; the first one that exists is read."""

MAX_SKILL_BYTES = 10 * 1024**2
"""A larger SKILL.md is not an instruction; read_file has the same limit."""

MAX_HEAD_BYTES = 16 * 1024
"""The front matter must end within this: several times the sum of the fields' own limits."""

MAX_NAME_CHARACTERS = 64
"""The limit of the format."""

MAX_DESCRIPTION_CHARACTERS = 1024
"""The limit of the format."""

MAX_COMPATIBILITY_CHARACTERS = 500
"""The limit of the format."""

_TEXTS = ("name", "description", "compatibility")


@dataclass(frozen=True, kw_only=True)
class Skill:
    """What the agent's instruction says of a skill."""

    name: str
    description: str
    compatibility: str = ""
    allowed_tools: str = ""
    """Only a hint: a file cannot give an agent tools."""
    remark: str = ""
    """What is against the format and does not keep the skill from being used."""


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
        return _parsed(head, unicodedata.normalize("NFKC", folder))
    except (_BadSkill, NoFrontMatter) as fault:
        return str(fault)


def skill_fault(data: bytes, folder: str) -> str:
    """Return why a skill is not used, or what is against the format; empty for a correct one.

    Args:
        data: Its SKILL.md.
        folder: The name of its folder.
    """
    found = parse_skill(data[:MAX_HEAD_BYTES], folder)
    return found if isinstance(found, str) else found.remark


def _parsed(head: bytes, folder: str) -> Skill:
    if len(head) >= MAX_HEAD_BYTES and b"\n---" not in head.replace(b"\r", b"\n")[3:]:
        raise _BadSkill(
            f"it does not begin with front matter between two lines --- in {MAX_HEAD_BYTES} bytes"
        )
    if not folder.isprintable():
        raise _BadSkill("the name of its folder has characters that are not printed")
    front = front_matter(head.decode(errors="replace"), texts=_TEXTS)
    try:
        return _skill(front.fields, folder)
    except _BadSkill as fault:
        raise _BadSkill(front.fault or str(fault)) from None


def _skill(fields: Mapping[str, Any], folder: str) -> Skill:
    remark = ""
    name = unicodedata.normalize("NFKC", _text(fields, "name"))
    if not name:
        name, remark = folder, "it has no name, so its folder's is used"
    _check_name(name)
    if name != folder:
        remark = "its name is not the name of its folder"
    description = _text(fields, "description", MAX_DESCRIPTION_CHARACTERS)
    if not description:
        raise _BadSkill("description must not be empty")
    return Skill(
        name=name,
        description=one_line(description),
        compatibility=one_line(_text(fields, "compatibility", MAX_COMPATIBILITY_CHARACTERS)),
        allowed_tools=" ".join(_tools(fields)),
        remark=remark,
    )


def _check_name(name: str) -> None:
    """Check a name by the rules of the format, which allow letters of any script.

    Raises:
        _BadSkill: It breaks one.
    """
    if len(name) > MAX_NAME_CHARACTERS:
        raise _BadSkill(f"name must be at most {MAX_NAME_CHARACTERS} characters")
    # Accents of some scripts are characters of their own.
    characters = [one for one in name if not unicodedata.category(one).startswith("M")]
    if name != name.lower() or not all(one.isalnum() or one == "-" for one in characters):
        raise _BadSkill("name must be lowercase kebab-case: letters, digits and hyphens")
    if name.startswith("-") or name.endswith("-") or "--" in name:
        raise _BadSkill("name must not begin or end with a hyphen, or have two in a row")


def _text(fields: Mapping[str, Any], name: str, most: int | None = None) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise _BadSkill(f"{name} must be a text")
    if most is not None and len(value.strip()) > most:
        raise _BadSkill(f"{name} must be at most {most} characters")
    return value.strip()


def _tools(fields: Mapping[str, Any]) -> list[str]:
    """Return the allowed tools, a text in the format and often a list."""
    value = fields.get("allowed-tools", "")
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str) for item in items):
        raise _BadSkill("allowed-tools must be names of tools")
    return [one_line(item) for item in items]
