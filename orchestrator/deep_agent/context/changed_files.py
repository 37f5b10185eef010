"""The files that an agent has changed, for its summaries: also by its shell and by its tasks.

A backend that knows its changes is asked (`TracksChanges`): a worker's sandbox, and the overlay of
a sub-agent in process. On other backends the changes by the file tools are joined with the files
whose time is newer than the conversation, which one bounded walk finds; a file that a command
deleted is missed there, unless a file tool had changed it before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from google.adk.events import Event

from fanout.orchestrator.deep_agent import prompts
from fanout.orchestrator.deep_agent.backends.protocol import Backend
from fanout.orchestrator.deep_agent.context.artifacts import CONVERSATION_HISTORY, is_artifact
from fanout.orchestrator.logs import Logger

log = Logger(__name__)

MAX_CHANGED_FILES = 200
"""In a summary; all of them are among the workspace's changes anyway."""

MAX_WALKED_FILES = 20_000
"""Of a walk for newer files: a large repository; beyond it the list is not complete."""

WALK_SECONDS = 2.0
"""A summary takes a model call of many seconds; a walk of 20,000 files takes less than one."""

CHANGES_SECONDS = 15.0
"""How long a backend may take to list its changes; a sandbox compares what was written."""

BY_TOOL = {
    "write_file": "created",
    "edit_file": "edited",
    "multi_edit": "edited",
    "apply_patch": "patched",
    "delete_file": "deleted",
}


@runtime_checkable
class TracksChanges(Protocol):
    """A backend that knows what was changed since the agent's work began."""

    async def changed_files(self) -> Mapping[str, str]:
        """Return the changed files by absolute path, each with its change, such as `added`."""


async def changed_files(
    backend: Backend, messages: Sequence[Event], *, history: str = CONVERSATION_HISTORY
) -> dict[str, str]:
    """Return the changed files by path, each with its change, the last changed last.

    Files that the harness stores for itself are not among them: in a session's state they lie
    beside the agent's own. A backend that fails costs its part of the list, not the summary.

    Args:
        backend: The agent's files.
        messages: The conversation from its beginning.
        history: The folder of messages that summaries replaced.
    """
    found = await _found(backend, messages)
    return {path: change for path, change in found.items() if not is_artifact(path, history)}


async def _found(backend: Backend, messages: Sequence[Event]) -> dict[str, str]:
    by_tools = _by_tools(messages)
    try:
        async with asyncio.timeout(CHANGES_SECONDS):
            if isinstance(backend, TracksChanges):
                tracked = await backend.changed_files()
                told = {path: by_tools[path] for path in by_tools if path in tracked}
                return {path: change for path, change in tracked.items() if path not in told} | told
            return await _with_newer(backend, by_tools, messages)
    except Exception as error:  # noqa: BLE001 - see above
        log.warning("changed files are not listed", error=type(error).__name__)
        return by_tools


def changed_files_text(changed: Mapping[str, str]) -> str:
    """Return the changed files as a section of a summary, the last first; empty without one."""
    lines = [f"- {path} ({change})" for path, change in reversed(list(changed.items()))]
    if len(lines) > MAX_CHANGED_FILES:
        lines[MAX_CHANGED_FILES:] = [f"- and {len(lines) - MAX_CHANGED_FILES} more"]
    return "\n".join([prompts.CHANGED_FILES, *lines]) if lines else ""


def _by_tools(messages: Sequence[Event]) -> dict[str, str]:
    """Return the files that the file tools changed, read from their results."""
    changed: dict[str, str] = {}
    for event in messages:
        for response in event.get_function_responses():
            result = response.response or {}
            if response.name not in BY_TOOL or result.get("status") != "success":
                continue
            one = {"path": result.get("path"), "change": BY_TOOL[response.name]}
            for file in result.get("files", [one]):
                changed.pop(file["path"], None)  # the last change of a file counts
                changed[file["path"]] = file["change"]
    return changed


async def _with_newer(
    backend: Backend, by_tools: dict[str, str], messages: Sequence[Event]
) -> dict[str, str]:
    """Add the files that are newer than the conversation, and note those that are gone."""
    since = messages[0].timestamp if messages else 0.0
    walk = await backend.walk(
        backend.search_root, max_entries=MAX_WALKED_FILES, timeout_seconds=WALK_SECONDS
    )
    newer = {
        entry.path: "changed"
        for entry in sorted(walk.entries, key=lambda entry: entry.modified_at)
        if entry.modified_at > since and entry.path not in by_tools
    }
    if walk.complete:
        root, found = backend.search_root.rstrip("/") + "/", {entry.path for entry in walk.entries}
        gone = {path for path in by_tools if path.startswith(root) and path not in found}
        by_tools = by_tools | dict.fromkeys(gone, "deleted")
    return newer | by_tools
