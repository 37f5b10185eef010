"""Stores tool results that are too long in files, and gives the model a preview."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import uuid4

from google.adk.apps import App
from google.adk.events import Event
from google.adk.sessions.state import State
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext

from fanout.orchestrator.deep_agent.backends.protocol import MAX_FILE_BYTES, Backend, Entry
from fanout.orchestrator.deep_agent.backends.state import SessionState, StateBackend
from fanout.orchestrator.deep_agent.context.artifacts import LARGE_TOOL_RESULTS
from fanout.orchestrator.deep_agent.context.readable import readable
from fanout.orchestrator.deep_agent.middleware import Middleware
from fanout.orchestrator.deep_agent.models.size import characters
from fanout.orchestrator.deep_agent.prompts import (
    RESULT_CUT,
    RESULT_DROPPED,
    RESULT_NOT_KEPT,
    RESULT_NOT_READABLE,
    RESULT_READERS,
    RESULT_TOO_LARGE,
)
from fanout.orchestrator.deep_agent.tools.files import LARGE_BYTES
from fanout.orchestrator.deep_agent.tools.search import MAX_WALKED_FILES
from fanout.orchestrator.valid_text import clean

MAX_INLINE_CHARACTERS = 80_000
"""About 20,000 tokens, the most that one tool result may take of a model's context."""

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


class Eviction(Middleware):
    """Replaces long results in one agent's conversation by a preview and a file; the last part.

    Args:
        tools: The names of the agent's tools; without one that reads files, results are not stored.
    """

    def __init__(self, tools: Collection[str]) -> None:
        self._readers = [usage for name, usage in RESULT_READERS.items() if name in tools]

    async def after_tool(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, tool_response: Any
    ) -> dict[str, Any] | None:
        """Replace a result that is too long by its path and a preview."""
        del args
        response = clean(tool_response)  # a dict was cleaned before; others have to be replaced
        call_id = tool_context.function_call_id or tool_context.run_id
        stored = await self.replacement(tool.name, response, call_id, tool_context.state)
        return {"result": response} if stored is None and response is not tool_response else stored

    async def replacement(
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
        if tool in BOUNDED or size <= MAX_INLINE_CHARACTERS:
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


async def evict_results(event: Event, app: App, state: Mapping[str, Any]) -> None:
    """Replace the long results in an event that is appended to a session between two runs.

    Such results come from no call of the run, so `Eviction` does not see them. They are stored in
    the event's change of the state.

    Args:
        event: The event, which is changed.
        app: The app whose agent gets the results.
        state: The session's state before the event.
    """
    tools = getattr(app.root_agent, "tools", ())
    eviction = Eviction([name for tool in tools if (name := getattr(tool, "name", ""))])
    after = State(dict(state), event.actions.state_delta)
    for answer in event.get_function_responses():
        replaced = await eviction.replacement(
            answer.name or "", answer.response, answer.id or "", after
        )
        if replaced is not None:
            answer.response = replaced


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
    kept = await _kept(backend)
    if any(entry.path == f"{LARGE_TOOL_RESULTS}/{name}" for entry in kept):
        name = f"{name}_{uuid4().hex}"  # some models reuse an id
    total = sum(entry.size_bytes for entry in kept) + len(data)
    for entry in sorted(kept, key=lambda entry: entry.modified_at):
        if total <= MAX_KEPT_BYTES:
            break
        if entry.size_bytes > len(RESULT_DROPPED):
            await backend.write_bytes(entry.path, RESULT_DROPPED.encode())
            total -= entry.size_bytes
    path = f"{LARGE_TOOL_RESULTS}/{name}"
    await backend.write_bytes(path, data)
    return path


async def _kept(backend: Backend) -> Sequence[Entry]:
    try:
        walk = await backend.walk(
            LARGE_TOOL_RESULTS, max_entries=MAX_WALKED_FILES, timeout_seconds=1
        )
    except FileNotFoundError:
        return ()
    return walk.entries
