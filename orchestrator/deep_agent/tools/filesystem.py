"""The file tools of the model. A tool's docstring is its description for the model."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from ..backends.protocol import Entry
from ..failures import ToolMistake
from ..knowledge import files_to_read
from ..middleware import BackendSource, Middleware
from ..models.facts import EDIT_TOOLS, EditTool
from ..prompts import FILES, ROOT
from ..tool import MethodTool
from .editing import Edit
from .files import Files
from .images import MEDIA_ENDINGS, media_content
from .locating import Locator
from .patches import Patching, parse_patch, patched_paths
from .search import (
    MAX_ENTRIES,
    MAX_GREP_HITS,
    FileSearch,
    Listing,
    OutputMode,
)

NOTEBOOK_ENDING = ".ipynb"
NOTEBOOK_NOTE = "the file is JSON, of which cells and text outputs are shown"

SEEN_PREFIX = "file_seen:"
"""Prefix of the state key for the version of a file that the agent saw last; with one key per file,
changes of the state are small."""

FilePath = Annotated[str, Field(description="Path of the file")]
Offset = Annotated[int, Field(description="How many results to skip")]
Limit = Annotated[int, Field(description="Most results to return")]


MAX_EDITS = 100
"""Replacements in one call: more is a new file, for which there is write_file."""

_EDITS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "old_string": {"type": "string"},
            "new_string": {"type": "string"},
            "replace_all": {"type": "boolean"},
        },
        "required": ["old_string", "new_string"],
    },
}


class EditArguments(BaseModel):
    """One replacement of multi_edit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    old_string: str
    new_string: str
    replace_all: bool = False


def _is_image(media_type: str) -> bool:
    return media_type.startswith("image/")


class FilesystemTools(Middleware):
    """The file tools of one agent.

    Args:
        backend_of: Finds the agent's files.
        edit_tools: The tools that change existing files.
        takes: Whether the model takes files of a media type.
    """

    def __init__(
        self,
        backend_of: BackendSource,
        *,
        edit_tools: Sequence[EditTool] = ("edit_file",),
        takes: Callable[[str], bool] = _is_image,
    ) -> None:
        self._takes = takes
        self._backend_of = backend_of
        self._edit_tools = edit_tools
        self._locks = _PathLocks()

    def tools(self) -> list[BaseTool]:
        """Return the file tools."""
        editing = [getattr(self, name) for name in self._edit_tools]
        methods = (self.ls, self.read_file, self.write_file, *editing, self.delete_file)
        return [MethodTool(method) for method in (*methods, self.glob, self.grep)]

    def lock(self, path: str) -> AbstractAsyncContextManager[None]:
        """Return the lock of a path, to hold while it is compared and written."""
        return self._locks.held(path)

    async def instruction(self, context: ReadonlyContext, tools: frozenset[str]) -> str:
        """Explain the rules for paths, and where the files are."""
        if not tools & {"read_file", "write_file", *EDIT_TOOLS}:
            return ""
        root = files_to_read(self._backend_of, context).search_root
        return FILES + (ROOT.format(root=root) if root != "/" else "")

    async def ls(
        self,
        path: Annotated[str, Field(description="Path of the directory")],
        *,
        offset: Offset = 0,
        limit: Limit = MAX_ENTRIES,
        tool_context: ToolContext,
    ) -> dict[str, Any]:
        """List the files and directories in one directory, hidden ones too."""
        return _listing(await self._search(tool_context).ls(path, offset=offset, limit=limit))

    async def read_file(
        self,
        file_path: FilePath,
        offset: Annotated[int, Field(description="Number of lines to skip")] = 0,
        limit: Annotated[int, Field(description="Most lines to return")] = 2000,
        *,
        tool_context: ToolContext,
    ) -> dict[str, Any]:
        """Read a text file with line numbers, or look at an image (png, jpg, gif, webp).

        Also PDFs (with an offset: as text), notebooks (as text), sounds and films. The number and
        the tab before each line are not part of the file. Read large files in parts with offset and
        limit.
        """
        file_path = self._resolved(file_path, tool_context)
        ending = posixpath.splitext(file_path)[1].lower()
        if ending == NOTEBOOK_ENDING:
            text = await self._files(tool_context).read_notebook(file_path, offset, limit)
            _saw(tool_context, file_path, text.version)
            return {"status": "success", "content": text.content, "note": NOTEBOOK_NOTE}
        if ending in MEDIA_ENDINGS:
            files = self._files(tool_context)
            found = await media_content(files, file_path, offset, limit, takes=self._takes)
            if found is not None:
                return {"status": "success", "content": found}
        result = await self._files(tool_context).read(file_path, offset, limit)
        _saw(tool_context, file_path, result.version)
        note = {"note": "not UTF-8: undecodable bytes are shown as \N{REPLACEMENT CHARACTER}"}
        return {"status": "success", "content": result.content, **(note if result.lossy else {})}

    async def write_file(
        self,
        file_path: FilePath,
        content: Annotated[str, Field(description="All of the file's text")],
        overwrite: Annotated[bool, Field(description="Replace a file that you have read")] = False,
        *,
        tool_context: ToolContext,
    ) -> dict[str, Any]:
        """Create a new file. Change an existing one with edit_file, or overwrite all of it.

        Overwriting is refused when you have not read the file or it changed after you read it.
        """
        if overwrite and not self._edit_tools:
            raise ToolMistake("You may create files, not change existing ones.")
        path = self._resolved(file_path, tool_context)
        async with self._locks.held(path):
            result = await self._files(tool_context).write(
                path, content, overwrite=overwrite, seen_version=_seen(tool_context, path)
            )
            _saw(tool_context, path, result.version)
        return {"status": "success", "path": path}

    async def edit_file(
        self,
        file_path: FilePath,
        old_string: Annotated[
            str,
            Field(description="Exact text to replace, without line numbers; empty if the file is"),
        ],
        new_string: Annotated[str, Field(description="Text to put in its place")],
        replace_all: Annotated[bool, Field(description="Replace every occurrence")] = False,
        *,
        tool_context: ToolContext,
    ) -> dict[str, Any]:
        """Replace text in a file. old_string must occur exactly once, unless replace_all is true.

        Read the file first. An edit is refused when the file changed after you read it.
        """
        edit = Edit(old_string, new_string, replace_all)
        return await self._edited(file_path, [edit], tool_context)

    async def multi_edit(
        self,
        file_path: FilePath,
        edits: Annotated[
            list[EditArguments],
            Field(description="The replacements, in order", min_length=1, max_length=MAX_EDITS),
            WithJsonSchema(_EDITS),
        ],
        *,
        tool_context: ToolContext,
    ) -> dict[str, Any]:
        """Make several replacements in one file: all, or none if one of them fails.

        Each is as for edit_file, and finds the text as the ones before left it.
        """
        made = [Edit(edit.old_string, edit.new_string, edit.replace_all) for edit in edits]
        return await self._edited(file_path, made, tool_context)

    async def apply_patch(
        self,
        input: Annotated[str, Field(description="The whole patch")],  # noqa: A002 - these models are trained with this name
        *,
        tool_context: ToolContext,
    ) -> dict[str, Any]:
        """Change several files with one patch: all of it, or nothing if a part does not fit.

        *** Begin Patch
        *** Update File: path
        @@ a line above the change, where it is not clear without
         a line that stays
        -a line that goes
        +a line that comes
        *** Add File: path
        +each line of the new file
        *** Delete File: path
        *** End Patch

        Give three lines around each change. "*** Move to: path" below an update moves the file.
        """
        sections = parse_patch(input)
        paths = patched_paths(sections, Locator(self._backend_of(tool_context)))
        patching = Patching(self._backend_of(tool_context))
        async with AsyncExitStack() as locks:
            for path in sorted(paths):
                await locks.enter_async_context(self._locks.held(path))
            changes = await patching.planned(sections, partial(_seen, tool_context))
            await patching.carry_out(changes)
            for each in changes:
                _saw(tool_context, each.path, each.version)
        files = [{"path": each.path, "change": each.change} for each in changes]
        return {"status": "success", "files": files}

    async def _edited(
        self, file_path: str, edits: Sequence[Edit], tool_context: ToolContext
    ) -> dict[str, Any]:
        path = self._resolved(file_path, tool_context)
        async with self._locks.held(path):
            result = await self._files(tool_context).edit(
                path, edits, seen_version=_seen(tool_context, path)
            )
            _saw(tool_context, path, result.version)
        return {"status": "success", "path": path, "occurrences": result.occurrences}

    async def delete_file(
        self, file_path: FilePath, *, tool_context: ToolContext
    ) -> dict[str, Any]:
        """Delete a file, or a directory with everything in it."""
        path = await self._files(tool_context).delete(file_path)
        _saw(tool_context, path, None)
        return {"status": "success", "path": path}

    async def glob(
        self,
        pattern: Annotated[str, Field(description="Such as **/*.py or src/{a,b}/*.ts")],
        path: Annotated[str, Field(description="Directory to search; / is all your files")] = "/",
        *,
        offset: Offset = 0,
        limit: Limit = MAX_ENTRIES,
        tool_context: ToolContext,
    ) -> dict[str, Any]:
        """Find files by a name pattern.

        * and ? stay within one directory, ** crosses directories, {a,b} gives alternatives. Hidden
        files are found too and come last; .git is left out unless path is in it.
        """
        return _listing(
            await self._search(tool_context).glob(pattern, path, offset=offset, limit=limit)
        )

    async def grep(
        self,
        pattern: Annotated[
            str, Field(description="Text to find, taken literally: not a regular expression")
        ],
        path: Annotated[str | None, Field(description="Directory or file to search")] = None,
        glob: Annotated[
            str | None, Field(description="Only files that match, such as *.py")
        ] = None,
        output_mode: OutputMode = "files_with_matches",
        *,
        offset: Offset = 0,
        limit: Limit = MAX_GREP_HITS,
        tool_context: ToolContext,
    ) -> dict[str, Any]:
        """Search text files for a literal text.

        output_mode: files_with_matches gives paths, content gives path:line:text, count gives
        matching lines per file. Of a long line the text around the match is shown, cut at […].
        Hidden files are searched too and come last; .git is left out unless path is in it.
        """
        result = await self._search(tool_context).grep(
            pattern, path, glob, output_mode, offset=offset, limit=limit
        )
        note = {"note": result.note} if result.note else {}
        return {"status": "success", "result": result.text, **note}

    def _search(self, tool_context: ToolContext) -> FileSearch:
        return FileSearch(self._backend_of(tool_context))

    def _resolved(self, path: str, tool_context: ToolContext) -> str:
        return Locator(self._backend_of(tool_context)).resolved(path)

    def _files(self, tool_context: ToolContext) -> Files:
        return Files(self._backend_of(tool_context))


class _PathLocks:
    """One lock per path in use, so that parallel edits of one file in one reply are not lost."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def held(self, path: str) -> AsyncIterator[None]:
        lock, users = self._waiting.get(path, (asyncio.Lock(), 0))
        self._waiting[path] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._waiting.pop(path)
            if users > 1:
                self._waiting[path] = lock, users - 1


def _listing(listing: Listing) -> dict[str, Any]:
    entries = [_info(entry) for entry in listing.entries]
    note = {"truncated": True, "note": listing.note} if listing.note else {}
    return {"status": "success", "entries": entries, **note}


def _info(entry: Entry) -> dict[str, Any]:
    return {
        "path": entry.path,
        "is_dir": entry.kind == "directory",
        "size": 0 if entry.kind == "directory" else entry.size_bytes,
        "modified_at": datetime.fromtimestamp(entry.modified_at, UTC).isoformat(timespec="seconds"),
    }


def _seen(tool_context: ToolContext, path: str) -> str | None:
    version: str | None = tool_context.state.get(SEEN_PREFIX + path)
    return version


def _saw(tool_context: ToolContext, path: str, version: str | None) -> None:
    tool_context.state[SEEN_PREFIX + path] = version
