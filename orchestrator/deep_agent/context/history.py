"""The complete history of a conversation as files: one part for each summary.

They are stored in the session's state, so they survive a crash and never appear among a workspace's
changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from google.adk.events import Event
from google.adk.sessions.state import State
from google.genai import types

from fanout.orchestrator.deep_agent.backends.state import StateBackend
from fanout.orchestrator.deep_agent.context.readable import readable
from fanout.orchestrator.deep_agent.messages import is_reply, parts_of

MAX_FOLDER_CHARACTERS = 128
"""The length of a session's id in a path; a file's name has at most 255 bytes."""


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
    for part in parts_of(event):
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
