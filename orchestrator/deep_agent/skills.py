"""Skills: folders with a SKILL.md, listed in the instruction, which the agent reads when needed.

They are searched for before every model call, on any backend, so that a skill that appears or
changes during a run is seen at once. The list is limited, and names what it leaves out.

The front matter is read by the rules of the format (agentskills.io). What the agent needs is a name
and a description. The person hears of a fault that leaves both clear; a skill without them is left
out. People write `description: Use when: …`, which YAML refuses, tabs, and values such as `no` and
`1.0`, which YAML turns into something else: here every value is the text that was written.
"""

from __future__ import annotations

import asyncio
import posixpath
import re
import textwrap
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import yaml
from google.adk.agents.readonly_context import ReadonlyContext

from ..logs import Logger
from ..shortening import one_line
from ..valid_text import clean_text
from . import prompts
from .backends.protocol import Backend
from .knowledge import (
    MISSING,
    Notice,
    Notices,
    Notify,
    Sources,
    files_to_read,
    text_of,
)
from .middleware import BackendSource, Middleware

MAX_DEPTH = 64
"""The deepest nesting of lists and mappings: twice that of any written by hand."""

_BEGINNING = re.compile(r"\A(?:[ \t]*\n)*-{3,}[ \t]*\n")
_END = re.compile(r"^(?:-{3,}|\.\.\.)[ \t]*$", re.MULTILINE)
_END_WITHOUT_A_LINE = re.compile(r"^[ \t]*$|^#", re.MULTILINE)
_FIELD = re.compile(r"""["']?([A-Za-z][\w-]*)["']?[ \t]*[:\uff1a](?!//)[ \t]*(.*)""")
"""A name and its value, also with the colon of Chinese texts, or without a space after it."""
_QUOTES = (('"', '"'), ("'", "'"), ("\u201c", "\u201d"), ("\u2018", "\u2019"))
_BLOCK_SCALAR = re.compile(r"[|>][+-]?\d?[+-]?")

MAX_NESTING = 4
"""How deep below a source skills are looked for, in groups of skills and in plugins."""

_OTHER_FOLDERS = {".git", "node_modules"}
"""Folders with very many others, in which nobody keeps skills."""

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
_LISTS = ("allowed-tools",)
log = Logger(__name__)

MAX_FOLDERS = 100
"""Folders of all sources that are read before a model call: a list and a short read each."""

MAX_LISTING_CHARACTERS = 20_000
"""The length of the list of skills, about 5,000 tokens: every call pays for it."""

MAX_SHOWN_FAULTS = 5
"""The most invalid skills in the list; the person is informed of all of them."""


class NoFrontMatter(ValueError):
    """A text has no front matter; the message says why, and quotes nothing of the text."""


@dataclass(frozen=True)
class FrontMatter:
    """The front matter of a text."""

    fields: Mapping[str, Any]
    """The fields by their names in lower case, with hyphens; a value is a text, a list or a
    mapping."""
    fault: str = ""
    """Why it is not YAML; empty if it is."""


def front_matter(text: str, *, texts: Collection[str], lists: Collection[str] = ()) -> FrontMatter:
    """Return the front matter of a text.

    Args:
        text: The whole text, or its beginning.
        texts: The fields that are meant to be texts, also if YAML makes something else of one.
        lists: The fields that are meant to be texts or lists of texts.

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
    by_line = _fields_by_line(inside, texts)
    if not isinstance(fields, dict):
        fields = by_line
    if not fields:
        raise NoFrontMatter(fault or "its front matter is not a mapping")
    named = {_standard_name(name): value for name, value in fields.items()}
    for name, value in by_line.items():
        standard = _standard_name(name)
        found = named.get(standard)
        is_list = standard in lists and _is_list_of_texts(found)
        if standard in {*texts, *lists} and not (isinstance(found, str) or is_list):
            named[standard] = value
    return FrontMatter(named, fault)


class _Loader(yaml.BaseLoader):
    """A loader that replaces invalid text, such as the escaped half of a surrogate pair."""

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


def _fields_by_line(text: str, texts: Collection[str]) -> dict[str, Any]:
    """Return the fields whose names begin a line.

    The lines after it belong to a field, those that are not indented until a blank one.

    Args:
        text: The front matter.
        texts: The fields of which no list is made.
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
    return {
        name: _value(first, rest, may_be_list=_standard_name(name) not in texts)
        for name, (first, *rest) in found.items()
    }


def _value(first: str, rest: list[str], *, may_be_list: bool) -> Any:
    """Return a value: what YAML makes of it alone, else the text as it is."""
    if _BLOCK_SCALAR.fullmatch(first.strip()):
        return textwrap.dedent("\n".join(line.expandtabs(2) for line in rest)).strip("\n")
    text = "\n".join([first, *rest]).expandtabs(2).strip()
    try:
        value = yaml.load(text, _Loader)  # noqa: S506 - as above
    except (yaml.YAMLError, RecursionError):
        value = None
    is_list = may_be_list and _is_list_of_texts(value)
    return value if isinstance(value, str) or is_list else text


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


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


def is_skill_file(name: str) -> bool:
    """Return whether a file of this name describes a skill: SKILL.md, in letters of any case."""
    return name.lower() == "skill.md"


def skill_fault(data: bytes, folder: str) -> str:
    """Return why a skill is not used, or what is against the format; empty for a correct one.

    Args:
        data: Its SKILL.md.
        folder: The name of its folder.
    """
    found = parse_skill(data[:MAX_HEAD_BYTES], folder)
    return found if isinstance(found, str) else found.remark


def _parsed(head: bytes, folder: str) -> Skill:
    text = text_of(head)
    if len(head) >= MAX_HEAD_BYTES and "\n---" not in text.replace("\r", "\n")[3:]:
        raise _BadSkill(
            f"it does not begin with front matter between two lines --- in {MAX_HEAD_BYTES} bytes"
        )
    if not folder.isprintable():
        raise _BadSkill("the name of its folder has characters that are not printed")
    front = front_matter(text, texts=_TEXTS, lists=_LISTS)
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
    return _without_quotes(value.strip())


def _without_quotes(text: str) -> str:
    """Return a text without the quotes around it that YAML does not know, or could not read."""
    inside = text[1:-1]
    pair = (text[:1], text[-1:])
    return inside if pair in _QUOTES and not any(quote in inside for quote in pair) else text


def _tools(fields: Mapping[str, Any]) -> list[str]:
    """Return the allowed tools, a text in the format and often a list."""
    value = fields.get("allowed-tools", "")
    items = value if isinstance(value, list) else [value]
    return [one_line(item) for item in items if isinstance(item, str)]


@dataclass
class _Found:
    """The skills in the sources, and the faults."""

    skills: dict[str, tuple[Skill, str]] = field(default_factory=dict)
    """The skills by name, each with the path of its SKILL.md; a later source replaces an earlier
    one."""
    faults: list[tuple[str, str]] = field(default_factory=list)
    """The paths of skipped files or sources, and why."""
    complete: bool = True
    """False if there are more folders than are read."""


class Skills(Middleware):
    """The skills of one agent.

    Args:
        backend_of: Finds the agent's files.
        sources: Folders that are skills or contain skills; later ones win. Relative ones are below
            the root of the agent's own files.
        notify: Gets a notice of each skill that is left out, or is not as the format says.

    Raises:
        ValueError: A source is not a valid path.
    """

    def __init__(
        self, backend_of: BackendSource, sources: Sequence[str], notify: Notify | None = None
    ) -> None:
        self._backend_of = backend_of
        self._sources = Sources(sources)
        self._notices = Notices(notify)

    async def instruction(self, context: ReadonlyContext, tools: frozenset[str]) -> str:
        """Return the list of skills; empty for an agent that cannot read files."""
        if not tools & {"read_file", "execute"}:
            return ""
        backend = files_to_read(self._backend_of, context)
        sources = self._sources.on(backend.search_root)
        found = await _discover(backend, sources)
        listing, unlisted = _listing(found, sources)
        await self._notices.tell([*_notices(found), *unlisted])
        return prompts.SKILLS + listing if listing else ""


def _notices(found: _Found) -> list[Notice]:
    skipped = [Notice("skill skipped", path, fault) for path, fault in found.faults]
    odd = [
        Notice("skill used", path, skill.remark)
        for skill, path in found.skills.values()
        if skill.remark
    ]
    return skipped + odd


async def _discover(backend: Backend, sources: Sequence[str]) -> _Found:
    found = _Found()
    left = MAX_FOLDERS
    for source in sources:
        read: list[_Folder] = []
        try:
            read.append(await _read_folder(backend, source))
        except FileNotFoundError:
            continue
        except OSError as error:
            is_file = isinstance(error, NotADirectoryError)
            fault = "it is not a folder" if is_file else "it cannot be read"
            found.faults.append((source, fault))
            continue
        level = read
        for _ in range(MAX_NESTING):
            folders = [inner for folder in level for inner in folder.folders]
            found.complete = found.complete and len(folders) <= left
            folders = folders[:left]
            left -= len(folders)
            results = await asyncio.gather(*(_read_inner(backend, one) for one in folders))
            level = [folder for folder in results if folder is not None]
            read += level
        _add(found, read)
    return found


def _add(found: _Found, folders: Iterable[_Folder]) -> None:
    """Add the skills of a source: those of earlier ones are replaced, its own are not."""
    own: dict[str, tuple[Skill, str]] = {}
    for folder in folders:
        match folder.skill:
            case str() as fault:
                found.faults.append((folder.path, fault))
            case Skill(name=name) if name in own:
                found.faults.append((folder.path, f"{own[name][1]} has the same name"))
            case Skill(name=name) as skill:
                own[name] = skill, folder.path
    found.skills.update(own)


@dataclass(frozen=True)
class _Folder:
    """What a folder has of skills."""

    path: str
    """The folder, or its SKILL.md."""
    skill: Skill | str | None = None
    """The skill, or what is wrong with it."""
    folders: Sequence[str] = ()
    """Without a skill, the folders and links in it."""


async def _read_inner(backend: Backend, folder: str) -> _Folder | None:
    """Return what a folder in a source has; None for something else than a folder."""
    try:
        return await _read_folder(backend, folder)
    except MISSING:
        return None
    except OSError:
        return _Folder(folder, "it cannot be read")


async def _read_folder(backend: Backend, folder: str) -> _Folder:
    """Return what a folder has.

    Raises:
        OSError: It is not a folder, or cannot be read.
    """
    entries = {posixpath.basename(entry.path): entry for entry in await backend.list(folder)}
    name = next(filter(is_skill_file, sorted(entries)), None)
    if name is not None:
        path = entries[name].path
        return _Folder(path, await _read_skill(backend, path))
    inner = [
        entry.path
        for name, entry in entries.items()
        if entry.kind in ("directory", "symlink") and name not in _OTHER_FOLDERS
    ]
    return _Folder(folder, folders=inner)


async def _read_skill(backend: Backend, path: str) -> Skill | str | None:
    """Return the skill that a SKILL.md describes, or what is wrong with it; None if it is gone."""
    try:
        head = await backend.read_bytes(path, MAX_HEAD_BYTES)
        if len(head) == MAX_HEAD_BYTES:
            size = (await backend.stat(path)).size_bytes
            if size > MAX_SKILL_BYTES:
                return f"it is larger than {MAX_SKILL_BYTES} bytes"
    except MISSING:
        return None
    except OSError:
        return "it cannot be read"
    folder = posixpath.basename(posixpath.dirname(path))
    return await asyncio.to_thread(parse_skill, head, folder)


def _listing(found: _Found, sources: Sequence[str]) -> tuple[str, list[Notice]]:
    """Return the list of skills by name, with notes on what was left out or skipped.

    The second value is what was left out for the list's length.
    """
    lines = [_line(*found.skills[name]) for name in sorted(found.skills)]
    fitting, left = 0, MAX_LISTING_CHARACTERS
    while fitting < len(lines) and len(lines[fitting]) <= left:
        left -= len(lines[fitting])
        fitting += 1
    rest = len(lines) - fitting
    unlisted: list[Notice] = []
    if rest or not found.complete:
        number = str(rest) if found.complete else "more"
        where = ", ".join(sources)
        lines[fitting:] = [f"- ({number} skills are not listed here: look in {where}.)\n"]
        limits = f"{MAX_FOLDERS} folders and {MAX_LISTING_CHARACTERS:,} characters"
        unlisted = [Notice(f"{number} skills not listed", where, f"a list has {limits} at most")]
    faults = found.faults[:MAX_SHOWN_FAULTS]
    skipped = [f"- skipped: {one_line(path)}: {fault}.\n" for path, fault in faults]
    return "".join([*lines, *skipped]), unlisted


def _line(skill: Skill, path: str) -> str:
    needs = f" Needs: {skill.compatibility}." if skill.compatibility else ""
    hint = f" Meant for the tools: {skill.allowed_tools}." if skill.allowed_tools else ""
    return f"- {skill.name}: {skill.description}{needs}{hint} ({path})\n"
