"""Memory: AGENTS.md files are put into the instruction, marked as material and not as orders.

They are read before every model call: reading a small file costs as much as checking whether it has
changed, and the text is never outdated. HTML comments are left out: a person who reads the page
does not see them.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from google.adk.agents.readonly_context import ReadonlyContext

from ..portable.text_search import BINARY_PROBE_BYTES
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
from .markdown import markdown_blocks
from .middleware import BackendSource, Middleware
from .models.facts import EDIT_TOOLS

MAX_FILE_BYTES = 32 * 1024
"""The size of one file, about 8,000 tokens: as much as other agents read of an AGENTS.md. Every
call pays for it."""

MAX_TOTAL_CHARACTERS = 64 * 1024
"""All files together, about 16,000 tokens: an eighth of the smallest context window in use."""

_BINARY = "it is a binary file"
_TOO_LARGE = f"only its first {MAX_FILE_BYTES:,} bytes are shown"
_NOT_UTF_8 = "it is not UTF-8, some characters are replaced"
_TAG = "memory_file"
_OWN_TAG = re.compile(rf"<(?=\s*/?\s*{_TAG})", re.IGNORECASE)
_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")

_MARK = re.compile(r"\\[\\`<]|`+|<!--")
"""What a code span or a comment begins with, and the escapes that keep them from beginning."""


class MemoryFiles(Middleware):
    """The memory files of one agent.

    Args:
        backend_of: Finds the agent's files.
        sources: The paths of the memory files, in the order in which they are shown; relative ones
            are below the root of the agent's own files.
        notify: Gets a notice of each file that is not shown, or not all of it.

    Raises:
        ValueError: A path is invalid.
    """

    def __init__(
        self, backend_of: BackendSource, sources: Sequence[str], notify: Notify | None = None
    ) -> None:
        self._backend_of = backend_of
        self._sources = Sources(sources)
        self._notices = Notices(notify)

    async def instruction(self, context: ReadonlyContext, tools: frozenset[str]) -> str:
        """Return the existing files with their paths, and how to treat them."""
        backend = files_to_read(self._backend_of, context)
        left = MAX_TOTAL_CHARACTERS
        shown: list[str] = []
        notices: list[Notice] = []
        for path in self._sources.on(backend.search_root):
            file = await _read(backend, path, left)
            if file is not None:
                shown.append(file.shown(path))
                left -= len(shown[-1])
                if file.fault:
                    what = "cut" if file.is_cut else "not shown" if file.text is None else "shown"
                    notices.append(Notice(f"memory file {what}", path, file.fault))
        await self._notices.tell(notices)
        if not shown:
            return ""
        update = prompts.MEMORY_UPDATE if not tools.isdisjoint(EDIT_TOOLS) else ""
        return "\n".join([prompts.MEMORY + update, *shown])


@dataclass(frozen=True)
class _File:
    """A memory file as the agent sees it."""

    text: str | None
    """None if it is not shown."""
    fault: str = ""
    """Why it is not shown, or not all of it."""
    is_cut: bool = False

    def shown(self, path: str) -> str:
        if self.text is None:
            return f"({path} is not shown: {self.fault}.)\n"
        note = f"\n({path} is cut here; the rest can be read with the file tools.)"
        text = _OWN_TAG.sub("&lt;", self.text) + (note if self.is_cut else "")
        return f'<{_TAG} path="{path}">\n{text}\n</{_TAG}>\n'


async def _read(backend: Backend, path: str, most: int) -> _File | None:
    """Return a file; None if it does not exist.

    Args:
        backend: The agent's files.
        path: The file.
        most: The characters that may be shown of it.
    """
    if most <= 0:
        return _File(None, f"the files together have over {MAX_TOTAL_CHARACTERS} characters")
    try:
        data = await backend.read_bytes(path, MAX_FILE_BYTES + 1)
    except MISSING:
        return None
    except OSError as error:
        is_folder = isinstance(error, IsADirectoryError)
        return _File(None, "it is a directory" if is_folder else "it cannot be read")
    fault = memory_fault(data)
    if fault == _BINARY:
        return _File(None, fault)
    decoded = text_of(data[:MAX_FILE_BYTES])
    text = (await asyncio.to_thread(without_comments, decoded)).strip()
    if len(text) > most:
        fault = f"the files together have over {MAX_TOTAL_CHARACTERS} characters"
    return _File(text[:most], fault, is_cut=len(text) > most or fault == _TOO_LARGE)


def memory_fault(data: bytes) -> str:
    """Return why a memory file is not shown, or not all of it; empty if nothing is wrong with it.

    Args:
        data: Its content, or the beginning of a large one.
    """
    if "\0" in text_of(data[:BINARY_PROBE_BYTES]):
        return _BINARY
    if len(data) > MAX_FILE_BYTES:
        return _TOO_LARGE
    return _NOT_UTF_8 if "\ufffd" in text_of(data) and b"\xef\xbf\xbd" not in data else ""


def without_comments(text: str) -> str:
    """Return a Markdown text without its HTML comments.

    What is in code stays, and so does a comment that is not closed in its paragraph or block: a
    person sees both. It may take a second for a large text, so call it in a thread.
    """
    if "<!--" not in text:
        return text
    lines = _LINE.findall(text)
    kept: list[str] = []
    done = 0
    for token in markdown_blocks(text):
        if token.type in ("inline", "html_block") and token.map is not None:
            begin, end = token.map
            kept += lines[done:begin]
            block = "".join(lines[begin:end])
            kept.append(_without_comments(block, has_code=token.type == "inline"))
            done = end
    return "".join([*kept, *lines[done:]])


def _without_comments(block: str, *, has_code: bool) -> str:
    """Return a paragraph or an HTML block without comments.

    Args:
        block: Its lines.
        has_code: Whether it may have code spans.
    """
    runs: dict[int, list[int]] = defaultdict(list)
    """The places of runs of backticks, by their length."""
    for run in re.finditer("`+", block) if has_code else ():
        runs[len(run[0])].append(run.start())
    kept: list[str] = []
    place = shown_until = 0
    while mark := _MARK.search(block, place):
        place = mark.end()
        if mark[0] == "<!--":
            # `<!-->` is a whole comment
            end = block.find("-->", mark.start() + 2)
            if end < 0:
                break
            kept.append(block[shown_until : mark.start()])
            place = shown_until = end + 3
        elif mark[0].startswith("`") and has_code:
            ends = runs[len(mark[0])]
            at = bisect_right(ends, mark.start())
            if at < len(ends):
                place = ends[at] + len(mark[0])
    return "".join([*kept, block[shown_until:]])
