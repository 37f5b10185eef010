"""What leaves a model's context is kept in files: long results of tools, and whole conversations.

The model gets a preview and the path. The files are in the session's state, whose changes are
journaled: so they survive a crash, and never appear among a workspace's changes. Nothing of a text
is left out: only line breaks and JSON's indentation are added, so that it can be read in pages.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from google.adk.events import Event
from google.adk.sessions.state import State
from google.adk.tools.base_tool import BaseTool
from google.genai import types

from ..backends.composite import CompositeBackend
from ..backends.protocol import MAX_FILE_BYTES, Backend, Entry
from ..backends.state import SessionState, StateBackend
from ..messages import is_reply, list_parts
from ..middleware import Middleware
from ..models.tokens import characters
from ..prompts import (
    RESULT_CUT,
    RESULT_DROPPED,
    RESULT_NOT_KEPT,
    RESULT_NOT_READABLE,
    RESULT_READERS,
    RESULT_TOO_LARGE,
)
from ..tools.files import LARGE_BYTES, MAX_RESULT_CHARACTERS
from ..tools.search import MAX_WALKED_FILES

PREVIEW_LINES = 10
"""Lines from the beginning, and as many from the end."""

PREVIEW_LINE_CHARACTERS = 90
"""A preview is below 2,000 tokens even in a script with one token per character."""

MAX_KEPT_BYTES = 50 * 1024**2
"""All stored results of one agent, in its session: five files of the largest size. They are in a
worker's memory while the agent runs, and most are read once, soon."""

MAX_NAME_CHARACTERS = 100
"""The length of a call's id in a path; providers' ids are shorter."""

BOUNDED = frozenset({"ls", "read_file", "write_file", "edit_file", "delete_file", "glob", "grep"})
"""Tools that limit their results themselves and say how to read on."""

LARGE_TOOL_RESULTS = "/large_tool_results"
"""Tool results that were too long for the context."""

TASK_RESULTS = "/task_results"
"""The whole results of tasks, in a file for each."""

CONVERSATION_HISTORY = "/conversation_history"
"""Messages that a summary replaced."""

LINE_CHARACTERS = 2_000
"""Longer lines are wrapped: read_file and grep show whole lines, and one line must leave room for
others."""

WORD_CHARACTERS = 100
"""A line is wrapped after a space if there is one this close to its end."""

TEXT_CHARACTERS = 200
"""A longer text, or one of several lines, is printed below its JSON, with its own line breaks."""

MAX_FOLDER_CHARACTERS = 128
"""The length of a session's id in a path; a file's name has at most 255 bytes."""


class Eviction(Middleware):
    """Replaces long results in one agent's conversation by a preview and a file; the last part.

    Args:
        tools: The names of the agent's tools; without one that reads files, results are not stored.
    """

    def __init__(self, tools: Collection[str]) -> None:
        self._readers = [usage for name, usage in RESULT_READERS.items() if name in tools]

    async def after_tools(
        self, results: Event, tools: Mapping[str, BaseTool], state: Mapping[str, Any]
    ) -> None:
        """Replace results that are too long by their paths and previews."""
        del tools
        after = State(dict(state), results.actions.state_delta)
        for answer in results.get_function_responses():
            call_id = answer.id or results.id
            replaced = await self._replacement(answer.name or "", answer.response, call_id, after)
            if replaced is not None:
                answer.response = replaced

    async def _replacement(
        self, tool: str, response: Any, call_id: str, state: SessionState
    ) -> dict[str, Any] | None:
        """Return what takes the place of a result that is too long; None for any other.

        Args:
            tool: The tool's name.
            response: Its result.
            call_id: The id of its call.
            state: The session's state, in which the result is stored.
        """
        size = characters(response)
        if tool in BOUNDED or size <= MAX_RESULT_CHARACTERS:
            return None
        value = _bare(response)
        text = await asyncio.to_thread(readable, value) if size > LARGE_BYTES else readable(value)
        data, left_out = _fitting(text)
        result = {
            **_short_fields(value),
            "status": "result_too_large",
            "saved_to": None,
            "characters": len(text),
            "message": RESULT_TOO_LARGE.format(tools=" or ".join(self._readers)),
            "preview": preview(text),
        }
        if not self._readers:
            return {**result, "message": RESULT_NOT_READABLE}
        try:
            result["saved_to"] = await _saved(StateBackend(state), call_id, data)
        except OSError:  # the agent has a file at the folder's path
            result["message"] = RESULT_NOT_KEPT
        if left_out:
            result["message"] = f"{result['message']} {RESULT_CUT.format(left_out=left_out)}"
        return result


def preview(text: str) -> str:
    """Return the first and the last lines of a text, each cut to a fixed length."""
    lines = text.split("\n")
    left_out = len(lines) - 2 * PREVIEW_LINES
    if left_out <= 0:
        return "\n".join(map(_short, lines))
    head, tail = lines[:PREVIEW_LINES], lines[-PREVIEW_LINES:]
    return "\n".join(
        [
            *map(_short, head),
            f"... [{left_out} lines of the file left out here] ...",
            *map(_short, tail),
        ]
    )


def _short(line: str) -> str:
    return line if len(line) <= PREVIEW_LINE_CHARACTERS else line[:PREVIEW_LINE_CHARACTERS] + "…"


def _short_fields(value: Any) -> dict[str, Any]:
    """Return what a result says besides its long parts: an exit code, the file of an output."""
    if not isinstance(value, dict):
        return {}
    return {
        name: field
        for name, field in value.items()
        if field is None or isinstance(field, bool | int | float) or _is_short(field)
    }


def _is_short(field: Any) -> bool:
    return isinstance(field, str) and len(field) <= PREVIEW_LINE_CHARACTERS


def _bare(response: Any) -> Any:
    """Return the tool's own result, which ADK wraps if it is not a mapping."""
    is_wrapped = isinstance(response, dict) and set(response) == {"result"}
    return response["result"] if is_wrapped else response


def _fitting(text: str) -> tuple[bytes, int]:
    """Return the text as a file of a readable size, and how many characters were left out."""
    data = text.encode(errors="replace")
    if len(data) <= MAX_FILE_BYTES:
        return data, 0
    kept = data[:MAX_FILE_BYTES].decode(errors="ignore")
    return kept.encode(), len(text) - len(kept)


async def _saved(backend: Backend, call_id: str, data: bytes) -> str:
    """Store the data and return its path; the oldest results are dropped if there is no room."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", call_id)[:MAX_NAME_CHARACTERS] or uuid4().hex
    kept = await make_room(backend, LARGE_TOOL_RESULTS, len(data), RESULT_DROPPED)
    if any(entry.path == f"{LARGE_TOOL_RESULTS}/{name}" for entry in kept):
        name = f"{name}_{uuid4().hex}"  # some models reuse an id
    path = f"{LARGE_TOOL_RESULTS}/{name}"
    await backend.write_bytes(path, data)
    return path


async def make_room(backend: Backend, folder: str, size: int, dropped: str) -> Sequence[Entry]:
    """Replace the oldest files of a folder by a sentence if others would not fit.

    Args:
        backend: The session's files.
        folder: The folder.
        size: The bytes of the files to come.
        dropped: The sentence.

    Returns:
        The files that the folder has.
    """
    kept = await _kept(backend, folder)
    total = sum(entry.size_bytes for entry in kept) + size
    for entry in sorted(kept, key=lambda entry: entry.modified_at):
        if total <= MAX_KEPT_BYTES:
            break
        if entry.size_bytes > len(dropped):
            await backend.write_bytes(entry.path, dropped.encode())
            total -= entry.size_bytes
    return kept


async def _kept(backend: Backend, folder: str) -> Sequence[Entry]:
    try:
        walk = await backend.walk(folder, max_entries=MAX_WALKED_FILES, timeout_seconds=1)
    except FileNotFoundError:
        return ()
    return walk.entries


def is_artifact(path: str, history: str = CONVERSATION_HISTORY) -> bool:
    """Return whether a path is in a folder that the harness stores for itself.

    Args:
        path: An absolute path.
        history: The folder of messages that summaries replaced.
    """
    return any(path == folder or path.startswith(f"{folder}/") for folder in _folders(history))


def _folders(history: str) -> tuple[str, ...]:
    return (LARGE_TOOL_RESULTS, TASK_RESULTS, history)


def with_artifacts(
    backend: Backend, state: SessionState, *, history: str = CONVERSATION_HISTORY
) -> CompositeBackend:
    """Return the agent's files with these folders, for its file tools; the shell does not see them.

    Args:
        backend: The agent's files.
        state: The session's state, which stores the folders.
        history: The folder of messages that summaries replaced.
    """
    return CompositeBackend(
        backend,
        {folder: StateBackend(state, search_root=folder) for folder in _folders(history)},
        internal=True,
    )


def readable(value: Any) -> str:
    """Return a value as text."""
    if isinstance(value, str):
        return _wrapped(_laid_out(value))
    if not isinstance(value, Mapping):
        return _wrapped(_json(value))
    texts = {name: text for name, text in value.items() if isinstance(text, str) and _is_long(text)}
    rest = {name: "(below)" if name in texts else item for name, item in value.items()}
    below = [f"--- {name} ---\n{_laid_out(text)}" for name, text in texts.items()]
    return _wrapped("\n".join([_json(rest), *below]))


def _is_long(text: str) -> bool:
    return "\n" in text or len(text) > TEXT_CHARACTERS


def _laid_out(text: str) -> str:
    """Indent JSON that is one long line; return any other text unchanged."""
    if len(text) <= LINE_CHARACTERS or text.lstrip()[:1] not in {"{", "["}:
        return text
    try:
        return _json(json.loads(text))
    except (ValueError, RecursionError):
        return text


def _json(value: Any) -> str:
    try:
        return json.dumps(value, indent=1, ensure_ascii=False, default=str)
    except (ValueError, TypeError, RecursionError):  # a cycle, or keys that are not valid in JSON
        return str(value)


def _wrapped(text: str) -> str:
    lines = text.split("\n")
    if max(map(len, lines)) <= LINE_CHARACTERS:
        return text
    return "\n".join(piece for line in lines for piece in _pieces(line))


def _pieces(line: str) -> Iterator[str]:
    start = 0
    while len(line) - start > LINE_CHARACTERS:
        end = start + LINE_CHARACTERS
        space = line.rfind(" ", end - WORD_CHARACTERS, end)
        end = end if space < 0 else space + 1
        yield line[start:end]
        start = end
    yield line[start:]


def history_folder(session_id: str, prefix: str) -> str:
    """Return the folder of a session's parts below a prefix."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", session_id)[:MAX_FOLDER_CHARACTERS]
    return f"{prefix}/{name}"


def part_path(session_id: str, number: int, prefix: str) -> str:
    """Return the path of one part, counted from 1, below a prefix."""
    return f"{history_folder(session_id, prefix)}/{number:04}.md"


def as_entries(events: Sequence[Event]) -> list[str]:
    """Return each message as Markdown, with its calls and results in full."""
    return ["\n\n".join(_blocks(event)) + "\n" for event in events]


def as_document(entries: Sequence[str], session_id: str, number: int) -> str:
    """Return one part of the history as a document."""
    return "\n".join([f"# Conversation {session_id}, part {number}\n", *entries])


async def written(state: Mapping[str, Any], path: str, text: str) -> dict[str, Any]:
    """Return the change of a session's state that writes a text to a file."""
    delta: dict[str, Any] = {}
    await StateBackend(State(dict(state), delta)).write_bytes(path, text.encode(errors="replace"))
    return delta


def _blocks(event: Event) -> Iterator[str]:
    time = datetime.fromtimestamp(event.timestamp, UTC).isoformat(sep=" ", timespec="seconds")
    kind = "model" if is_reply(event) else "tools"
    role = "user" if event.author == "user" else f"{event.author} ({kind})"
    yield f"## {role} · {time}"
    for part in list_parts(event):
        if part.text and not part.thought:
            yield part.text
        elif part.function_call:
            yield _block("Call of", part.function_call, part.function_call.args or {})
        elif part.function_response:
            yield _block("Result of", part.function_response, part.function_response.response or {})
        elif part.inline_data:
            size = len(part.inline_data.data or b"")
            yield f"({part.inline_data.mime_type}, {size} bytes, not kept here)"
        elif part.file_data:
            yield f"({part.file_data.mime_type}: {part.file_data.file_uri})"


def _block(
    title: str, of: types.FunctionCall | types.FunctionResponse, values: Mapping[str, Any]
) -> str:
    text = readable({name: _without_media(value) for name, value in values.items()})
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"### {title} {of.name} ({of.id})\n\n{fence}\n{text}\n{fence}"


def _without_media(value: Any) -> Any:
    """Leave out an image's base64, which no reader needs; the call names its file."""
    if isinstance(value, Mapping) and value.get("type") == "image":
        return {**value, "data": "(not kept here)"}
    return value
