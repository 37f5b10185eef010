"""Memory: AGENTS.md files are put into the instruction, marked as material and not as orders.

They are read before every model call: reading a small file costs as much as checking whether it has
changed, and the text is never outdated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from google.adk.agents.readonly_context import ReadonlyContext

from fanout.orchestrator.deep_agent import prompts
from fanout.orchestrator.deep_agent.backends.matching import is_binary
from fanout.orchestrator.deep_agent.backends.protocol import Backend
from fanout.orchestrator.deep_agent.knowledge.sources import MISSING, Sources, files_to_read
from fanout.orchestrator.deep_agent.middleware import BackendSource, Middleware
from fanout.orchestrator.deep_agent.models.profiles import EDIT_TOOLS

MAX_FILE_BYTES = 32 * 1024
"""The size of one file, about 8,000 tokens: as much as other agents read of an AGENTS.md. Every
call pays for it."""

MAX_TOTAL_CHARACTERS = 64 * 1024
"""All files together, about 16,000 tokens: an eighth of the smallest context window in use."""

_TAG = "memory_file"
_OWN_TAG = re.compile(rf"<(?=\s*/?\s*{_TAG})", re.IGNORECASE)


class MemoryFiles(Middleware):
    """The memory files of one agent.

    Args:
        backend_of: Finds the agent's files.
        sources: The paths of the memory files, in the order in which they are shown; relative ones
            are below the root of the agent's own files.

    Raises:
        ValueError: A path is invalid.
    """

    def __init__(self, backend_of: BackendSource, sources: Sequence[str]) -> None:
        self._backend_of = backend_of
        self._sources = Sources(sources)

    async def instruction(self, context: ReadonlyContext, tools: frozenset[str]) -> str:
        """Return the existing files with their paths, and how to treat them."""
        backend = files_to_read(self._backend_of, context)
        left = MAX_TOTAL_CHARACTERS
        shown: list[str] = []
        for path in self._sources.on(backend.search_root):
            text = await _text(backend, path, left)
            if text is not None:
                shown.append(text)
                left -= len(text)
        if not shown:
            return ""
        update = prompts.MEMORY_UPDATE if not tools.isdisjoint(EDIT_TOOLS) else ""
        return "\n".join([prompts.MEMORY + update, *shown])


async def _text(backend: Backend, path: str, most: int) -> str | None:
    """Return a file as the agent sees it, or why it is not shown; None if it does not exist."""
    if most <= 0:
        reason = f"the files together have over {MAX_TOTAL_CHARACTERS} characters"
        return f"({path} is left out: {reason}.)\n"
    try:
        data = await backend.read_bytes(path, MAX_FILE_BYTES + 1)
    except MISSING:
        return None
    except OSError as error:
        is_folder = isinstance(error, IsADirectoryError)
        reason = "it is a directory" if is_folder else "it cannot be read"
        return f"({path} is not shown: {reason}.)\n"
    if is_binary(data):
        return f"({path} is not shown: it is a binary file.)\n"
    text = without_comments(data[:MAX_FILE_BYTES].decode(errors="replace")).strip()
    cut = len(data) > MAX_FILE_BYTES or len(text) > most
    note = f"\n({path} is cut here; the rest can be read with the file tools.)" if cut else ""
    return f'<{_TAG} path="{path}">\n{_OWN_TAG.sub("&lt;", text[:most])}{note}\n</{_TAG}>\n'


def without_comments(text: str) -> str:
    """Return the text without HTML comments, which a person does not see.

    A comment that is not closed extends to the end. A regular expression would take quadratic time
    for many unclosed comments.
    """
    kept: list[str] = []
    while text:
        before, opening, rest = text.partition("<!--")
        kept.append(before)
        text = rest.partition("-->")[2] if opening else ""
    return "".join(kept)
