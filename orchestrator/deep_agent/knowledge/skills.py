"""Skills: folders with a SKILL.md, listed in the instruction, which the agent reads when needed.

They are searched for before every model call, on any backend, so that a skill that appears or
changes during a run is seen at once. The list is limited, and names what it leaves out.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog
from google.adk.agents.readonly_context import ReadonlyContext

from fanout.orchestrator.deep_agent import prompts
from fanout.orchestrator.deep_agent.backends.protocol import Backend
from fanout.orchestrator.deep_agent.knowledge.skill_file import (
    MAX_HEAD_BYTES,
    MAX_SKILL_BYTES,
    SKILL_FILE,
    Skill,
    parse_skill,
)
from fanout.orchestrator.deep_agent.knowledge.sources import MISSING, Sources, files_to_read
from fanout.orchestrator.deep_agent.middleware import BackendSource, Middleware
from fanout.orchestrator.shortening import one_line

log = structlog.get_logger(__name__)

MAX_FOLDERS = 100
"""Folders of all sources that are read before a model call: one short read each."""

MAX_LISTING_CHARACTERS = 20_000
"""The length of the list of skills, about 5,000 tokens: every call pays for it."""

MAX_SHOWN_FAULTS = 5
"""Invalid skills in the list; all of them are logged."""


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

    Raises:
        ValueError: A source is not a valid path.
    """

    def __init__(self, backend_of: BackendSource, sources: Sequence[str]) -> None:
        self._backend_of = backend_of
        self._sources = Sources(sources)
        self._warned: set[tuple[str, str]] = set()

    async def instruction(self, context: ReadonlyContext, tools: frozenset[str]) -> str:
        """Return the list of skills; empty for an agent that cannot read files."""
        if not tools & {"read_file", "execute"}:
            return ""
        backend = files_to_read(self._backend_of, context)
        sources = self._sources.on(backend.search_root)
        found = await _discover(backend, sources)
        self._warn(found.faults)
        if not found.skills and not found.faults:
            return ""
        return prompts.SKILLS + _listing(found, sources)

    def _warn(self, faults: Sequence[tuple[str, str]]) -> None:
        """Log each fault once, not before every model call."""
        for path, fault in faults:
            if (path, fault) not in self._warned:
                log.warning("skill skipped", path=path, fault=fault)
        self._warned = set(faults)


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
        for folder, result in zip(folders, results, strict=True):
            path = posixpath.join(folder, SKILL_FILE)
            if isinstance(result, str):
                found.faults.append((path, result))
            elif result is not None:
                found.skills[result.name] = result, path
    return found


async def _skill_folders(backend: Backend, source: str) -> Sequence[str]:
    """Return the source itself if it is a skill, else the folders and links in it."""
    entries = await backend.list(source)
    if any(posixpath.basename(entry.path) == SKILL_FILE for entry in entries):
        return [source]
    return [entry.path for entry in entries if entry.kind in ("directory", "symlink")]


async def _skill_in(backend: Backend, folder: str) -> Skill | str | None:
    """Return the skill in a folder, or what is wrong with it; None if the folder is not a skill."""
    path = posixpath.join(folder, SKILL_FILE)
    try:
        head = await backend.read_bytes(path, MAX_HEAD_BYTES)
        if len(head) == MAX_HEAD_BYTES and (await backend.stat(path)).size_bytes > MAX_SKILL_BYTES:
            return f"it is larger than {MAX_SKILL_BYTES} bytes"
    except MISSING:
        return None
    except OSError:
        return "it cannot be read"
    return await asyncio.to_thread(parse_skill, head, posixpath.basename(folder))


def _listing(found: _Found, sources: Sequence[str]) -> str:
    """Return the list of skills by name, with notes on what was left out or skipped."""
    lines = [_line(*found.skills[name]) for name in sorted(found.skills)]
    fitting, left = 0, MAX_LISTING_CHARACTERS
    while fitting < len(lines) and len(lines[fitting]) <= left:
        left -= len(lines[fitting])
        fitting += 1
    rest = len(lines) - fitting
    if rest or not found.complete:
        number = str(rest) if found.complete else "more"
        lines[fitting:] = [
            f"- ({number} skills are not listed here: look in {', '.join(sources)}.)\n"
        ]
    faults = found.faults[:MAX_SHOWN_FAULTS]
    skipped = [f"- skipped: {one_line(path)}: {fault}.\n" for path, fault in faults]
    return "".join([*lines, *skipped])


def _line(skill: Skill, path: str) -> str:
    needs = f" Needs: {skill.compatibility}." if skill.compatibility else ""
    hint = f" Meant for the tools: {skill.allowed_tools}." if skill.allowed_tools else ""
    return f"- {skill.name}: {skill.description}{needs}{hint} ({path})\n"
