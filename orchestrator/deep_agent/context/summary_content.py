"""The content that replaces summarized messages: the task verbatim, then the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.adk.events import Event
from google.genai import types

from fanout.orchestrator.deep_agent import prompts
from fanout.orchestrator.deep_agent.context.changed_files import changed_files_text
from fanout.orchestrator.deep_agent.messages import is_reply, is_request, parts_of, text_of
from fanout.orchestrator.deep_agent.models.size import CHARACTERS_PER_TOKEN
from fanout.orchestrator.deep_agent.tools.todos import STATE_KEY as TODOS

MAX_TASK_CHARACTERS = 40_000
"""10,000 tokens: a task is repeated in full unless it contains whole documents."""

MAX_SUMMARY_CHARACTERS = 24_000
"""6,000 tokens, three times what is requested: a verbose model must not fill the room just made."""

MAX_WINDOW_SHARE = 0.1
"""Share of the model's window for the task, and the same share for the summary."""

MAX_TODO_CHARACTERS = 200
"""The length of one step of the plan; read_todos returns it in full."""


def summary_content(
    *,
    messages: Sequence[Event],
    summary: str,
    state: dict[str, Any],
    window_tokens: int,
    history: Sequence[str],
    changed: Mapping[str, str],
) -> types.Content:
    """Return the content that replaces these messages.

    Args:
        messages: All from the conversation's beginning up to the cut.
        summary: Their summary.
        state: The session's state, which holds the plan.
        window_tokens: The window of the agent's model, which limits the task's length.
        history: The paths of the files with the messages.
        changed: The changed files by path, each with its change.
    """
    room = share_of(window_tokens, MAX_TASK_CHARACTERS)
    asked = [event for event in messages if _has_request(event)]
    first, last = history[0], history[-1]
    files = first if first == last else f"{first} to {last}"
    facts = [
        _latest_request(asked, room),
        changed_files_text(changed),
        _plan(state),
        prompts.WHERE_HISTORY_IS.format(files=files),
    ]
    begins = prompts.SUMMARY_BEGINS.format(replies=sum(map(is_reply, messages)))
    texts = [f"{begins}\n\n{summary}", "\n\n".join(fact for fact in facts if fact)]
    task = _task_parts(asked[0], room) if asked else []
    return types.Content(role="user", parts=[*task, *(types.Part(text=text) for text in texts)])


def share_of(window_tokens: int, most: int) -> int:
    """Return how many characters one part of such a content may have.

    Args:
        window_tokens: The window of the agent's model.
        most: The absolute limit in characters.
    """
    return min(int(window_tokens * CHARACTERS_PER_TOKEN * MAX_WINDOW_SHARE), most)


def task_text(messages: Sequence[Event]) -> str:
    """Return the user's first message."""
    return next((text_of(event, "\n") for event in messages if _has_request(event)), "")


def shortened(text: str, most: int) -> str:
    """Return the text, or its beginning and end with a note between them.

    Args:
        text: Any text.
        most: The length in characters above which it is shortened.
    """
    if len(text) <= most:
        return text
    head, tail = most * 3 // 4, most // 4
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[… {left_out} characters are left out here …]\n{text[-tail:]}"


def _has_request(event: Event) -> bool:
    return is_request(event) and bool(parts_of(event))


def _task_parts(event: Event, most: int) -> list[types.Part]:
    text = shortened(text_of(event, "\n"), most)
    media = [part for part in parts_of(event) if part.inline_data or part.file_data]
    return [*([types.Part(text=text)] if text else []), *media]


def _latest_request(asked: Sequence[Event], most: int) -> str:
    """Return the user's last message; empty if it is the task."""
    if len(asked) < 2:  # noqa: PLR2004 - the first is the task
        return ""
    text = shortened(text_of(asked[-1], "\n"), most)
    return f"{prompts.LATEST_REQUEST}\n\n{text}" if text else ""


def _plan(state: dict[str, Any]) -> str:
    todos = state.get(TODOS) or []
    lines = [
        f"- [{todo['status']}] {shortened(todo['content'], MAX_TODO_CHARACTERS)}" for todo in todos
    ]
    return "\n".join([prompts.PLAN_NOW, *lines]) if lines else ""
