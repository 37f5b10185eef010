"""Skills: folders with a SKILL.md, listed in the instruction, which the agent reads when needed.

They are searched for before every model call, on any backend, so that a skill that appears or
changes during a run is seen at once. The list is limited, and names what it leaves out.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field

from google.adk.agents.readonly_context import ReadonlyContext

from fanout.orchestrator.deep_agent import prompts
from fanout.orchestrator.deep_agent.backends.protocol import Backend
from fanout.orchestrator.deep_agent.knowledge.notices import Notice, Notices, Notify
from fanout.orchestrator.deep_agent.knowledge.skill_file import (
    MAX_HEAD_BYTES,
    MAX_SKILL_BYTES,
    SKILL_FILES,
    Skill,
    parse_skill,
)
from fanout.orchestrator.deep_agent.knowledge.sources import MISSING, Sources, files_to_read
from fanout.orchestrator.deep_agent.middleware import BackendSource, Middleware
from fanout.orchestrator.logs import Logger
from fanout.orchestrator.shortening import one_line

log = Logger(__name__)

MAX_FOLDERS = 100
"""Folders of all sources that are read before a model call: one short read each."""

MAX_LISTING_CHARACTERS = 20_000
"""The length of the list of skills, about 5,000 tokens: every call pays for it."""

MAX_SHOWN_FAULTS = 5
"""Invalid skills in the list; the person is told of all of them."""


@dataclass
class _Found:
    """The skills in the sources, and the faults."""

    skills: dict[str, tuple[Skill, str]] = field(default_factory=dict)
    """By name, each with the path of its SKILL.md; a later source replaces an earlier one."""
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
        notify: Who is told of a skill that is left out, or is not as the format says.

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
        try:
            folders = await _skill_folders(backend, source)
        except FileNotFoundError:
            continue
        except OSError as error:
            is_file = isinstance(error, NotADirectoryError)
            fault = "it is not a folder" if is_file else "it cannot be read"
            found.faults.append((source, fault))
            continue
        found.complete = found.complete and len(folders) <= left
        folders = folders[:left]
        left -= len(folders)
        results = await asyncio.gather(*(_skill_in(backend, folder) for folder in folders))
        for skill, path in filter(None, results):
            if isinstance(skill, str):
                found.faults.append((path, skill))
            else:
                found.skills[skill.name] = skill, path
    return found


async def _skill_folders(backend: Backend, source: str) -> Sequence[str]:
    """Return the source itself if it is a skill, else the folders and links in it."""
    entries = await backend.list(source)
    if any(posixpath.basename(entry.path) in SKILL_FILES for entry in entries):
        return [source]
    return [entry.path for entry in entries if entry.kind in ("directory", "symlink")]


async def _skill_in(backend: Backend, folder: str) -> tuple[Skill | str, str] | None:
    """Return the skill in a folder, or what is wrong with it, and the path of its file.

    None if the folder is not a skill.
    """
    for name in SKILL_FILES:
        path = posixpath.join(folder, name)
        try:
            head = await backend.read_bytes(path, MAX_HEAD_BYTES)
            if len(head) == MAX_HEAD_BYTES:
                size = (await backend.stat(path)).size_bytes
                if size > MAX_SKILL_BYTES:
                    return f"it is larger than {MAX_SKILL_BYTES} bytes", path
        except MISSING:
            continue
        except OSError:
            return "it cannot be read", path
        return await asyncio.to_thread(parse_skill, head, posixpath.basename(folder)), path
    return None


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
