"""What stands in the place of summed-up messages: the task, word for word, then the summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from google.adk.events import Event
from google.genai import types

from orchestrator.deep_agent import prompts
from orchestrator.deep_agent.messages import is_reply, parts_of, text_of
from orchestrator.deep_agent.models.size import CHARACTERS_PER_TOKEN
from orchestrator.deep_agent.tools.todos import STATE_KEY as TODOS

MAX_TASK_CHARACTERS = 40_000
"""10,000 tokens: a task is repeated in full unless it carries whole documents."""

MAX_SUMMARY_CHARACTERS = 24_000
"""6,000 tokens: three times what is asked for. A model that runs on must not fill the room just
made."""

MAX_WINDOW_SHARE = 0.1
"""Of the model's window, the most that the task takes, and the most that the summary takes."""

MAX_CHANGED_FILES = 200
"""Newest first; all of them are in the workspace's changes anyway."""

MAX_TODO_CHARACTERS = 200
"""Of one step of the plan; read_todos gives it in full."""

FILE_CHANGES = {"write_file": "created", "edit_file": "edited", "delete_file": "deleted"}


def summary_content(
    *,
    messages: Sequence[Event],
    summary: str,
    state: dict[str, Any],
    window_tokens: int,
    history: Sequence[str],
) -> types.Content:
    """The content that replaces these messages.

    Args:
        messages: All from the conversation's beginning up to the cut.
        summary: What a model wrote of them.
        state: The session's, for the plan.
        window_tokens: The agent's model takes so many; the task takes a share at most.
        history: The first and the last file with the messages themselves.
    """
    room = share_of(window_tokens, MAX_TASK_CHARACTERS)
    asked = [event for event in messages if _is_request(event)]
    first, last = history[0], history[-1]
    files = first if first == last else f"{first} to {last}"
    facts = [
        _latest_request(asked, room),
        _changed_files(messages),
        _plan(state),
        prompts.WHERE_HISTORY_IS.format(files=files),
    ]
    begins = prompts.SUMMARY_BEGINS.format(replies=_replies(messages))
    texts = [f"{begins}\n\n{summary}", "\n\n".join(fact for fact in facts if fact)]
    task = _task_parts(asked[0], room) if asked else []
    return types.Content(role="user", parts=[*task, *(types.Part(text=text) for text in texts)])


def share_of(window_tokens: int, most: int) -> int:
    """How many characters one part of such a content may have."""
    return min(int(window_tokens * CHARACTERS_PER_TOKEN * MAX_WINDOW_SHARE), most)


def task_text(messages: Sequence[Event]) -> str:
    """What the user asked for first."""
    return next((text_of(event, "\n") for event in messages if _is_request(event)), "")


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and end with a note between them."""
    if len(text) <= most:
        return text
    head, tail = most * 3 // 4, most // 4
    return f"{text[:head]}\n[… {len(text) - head - tail} characters are left out here …]\n{text[-tail:]}"


def _is_request(event: Event) -> bool:
    is_users = event.author == "user" and not event.get_function_responses()
    return is_users and bool(parts_of(event))


def _task_parts(event: Event, most: int) -> list[types.Part]:
    text = shortened(text_of(event, "\n"), most)
    media = [part for part in parts_of(event) if part.inline_data or part.file_data]
    return [*([types.Part(text=text)] if text else []), *media]


def _latest_request(asked: Sequence[Event], most: int) -> str:
    """What the user asked for last, where that is not the task above."""
    if len(asked) < 2:  # noqa: PLR2004 - the first is the task
        return ""
    text = shortened(text_of(asked[-1], "\n"), most)
    return f"{prompts.LATEST_REQUEST}\n\n{text}" if text else ""


def _replies(messages: Iterable[Event]) -> int:
    return sum(map(is_reply, messages))


def _changed_files(messages: Sequence[Event]) -> str:
    """The files that the file tools changed, from the calls themselves: no summary forgets one."""
    results = {
        response.id: response.response or {}
        for event in messages
        for response in event.get_function_responses()
    }
    changed: dict[str, str] = {}
    for event in messages:
        for call in event.get_function_calls():
            path = (call.args or {}).get("file_path")
            if (
                call.name in FILE_CHANGES
                and path
                and results.get(call.id, {}).get("status") == "success"
            ):
                changed.pop(path, None)  # the last change of a file counts
                changed[path] = FILE_CHANGES[call.name]
    lines = [f"- {path} ({change})" for path, change in reversed(changed.items())]
    if len(lines) > MAX_CHANGED_FILES:
        lines[MAX_CHANGED_FILES:] = [f"- and {len(lines) - MAX_CHANGED_FILES} more"]
    return "\n".join([prompts.CHANGED_FILES, *lines]) if lines else ""


def _plan(state: dict[str, Any]) -> str:
    todos = state.get(TODOS) or []
    lines = [
        f"- [{todo['status']}] {shortened(todo['content'], MAX_TODO_CHARACTERS)}" for todo in todos
    ]
    return "\n".join([prompts.PLAN_NOW, *lines]) if lines else ""
