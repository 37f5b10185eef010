"""What a coding agent says of its work: the kinds of `session/update` that the journal shows.

A kind that is not known here says nothing, and neither does a field of another type: agents are
ahead of the protocol, and none of it is worth a failed job.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

from pydantic import JsonValue

from fanout.orchestrator.configuration.agent_definitions import TOOL_KINDS
from fanout.orchestrator.shortening import one_line

MAX_TEXT_CHARACTERS = 50_000
"""The longest text of a result: some twelve thousand tokens."""
MAX_TITLE_CHARACTERS = 300
"""The longest title of a call, path, or step of a plan: two lines of a terminal."""
MAX_ID_CHARACTERS = 120
"""The longest id of a call or an option: twice that of any known agent."""
MAX_INPUT_CHARACTERS = 60_000
"""The longest arguments of a call, as JSON: a person decides by them."""
MAX_COST_USD = 1e9
"""A larger number is not true."""
MAX_TODOS = 100
"""The steps of a plan that are kept: a longer plan is useless."""
STATUSES = ("pending", "in_progress", "completed")
"""The states of a step of a plan."""
OTHER = "other"
"""The kind of a call whose kind is not one of ACP's."""


@dataclass(frozen=True)
class Chunk:
    """A part of a message of the agent."""

    text: str
    is_thought: bool = False


@dataclass(frozen=True)
class ToolUse:
    """What is said of a call of a tool; None: nothing."""

    id: str
    kind: str | None = None
    title: str | None = None
    status: str | None = None
    arguments: dict[str, JsonValue] | None = None
    output: str | None = None

    def updated(self, newer: ToolUse) -> ToolUse:
        """Return the call with what is said of it later."""
        return replace(self, **{name: value for name, value in vars(newer).items() if value})


@dataclass(frozen=True)
class Plan:
    """The agent's plan."""

    todos: tuple[dict[str, JsonValue], ...]


@dataclass(frozen=True)
class SessionCost:
    """What the session has cost so far, as the agent tells it."""

    amount_usd: float


Update = Chunk | ToolUse | Plan | SessionCost


def read_update(params: dict[str, Any]) -> Update | None:
    """Return what a `session/update` says; None for nothing that is shown."""
    update = params.get("update")
    if not isinstance(update, dict):
        return None
    match update.get("sessionUpdate"):
        case "agent_message_chunk":
            return Chunk(_text(update.get("content")))
        case "agent_thought_chunk":
            return Chunk(_text(update.get("content")), is_thought=True)
        case "tool_call" | "tool_call_update":
            return read_call(update)
        case "plan":
            return _plan(update.get("entries"))
        case "usage_update":
            return _cost(update.get("cost"))
    return None


def read_call(update: dict[str, Any]) -> ToolUse:
    """Return what an update, or a question, says of a call of a tool."""
    kind, status = update.get("kind"), update.get("status")
    return ToolUse(
        id=str(update.get("toolCallId", ""))[:MAX_ID_CHARACTERS],
        kind=None if kind is None else kind if kind in TOOL_KINDS else OTHER,
        title=_title(update.get("title")),
        status=status if isinstance(status, str) else None,
        arguments=_arguments(update.get("rawInput")),
        output=_output(update.get("content"), update.get("rawOutput")),
    )


def _title(value: Any) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    line = one_line(value, MAX_TITLE_CHARACTERS)
    return line if len(value) <= MAX_TITLE_CHARACTERS else f"{line} #{_digest(value)}"


def _arguments(raw: Any) -> dict[str, JsonValue] | None:
    if not raw or (isinstance(raw, dict) and raw.keys() == {"cwd"}):  # the rest comes later
        return None
    if len(text := json.dumps(raw)) > MAX_INPUT_CHARACTERS:
        return {"input": _cut(text, MAX_INPUT_CHARACTERS), "sha256": _digest(text)}
    return raw if isinstance(raw, dict) else {"input": raw}


def _output(content: Any, raw: Any) -> str | None:
    """Return the text of a call's result: its content, else its raw output."""
    parts = [_block(block) for block in content] if isinstance(content, list) else []
    text = "\n".join(part for part in parts if part)
    if not text and raw is not None:
        inner = raw.get("output") if isinstance(raw, dict) else raw
        text = inner if isinstance(inner, str) else json.dumps(raw)
    return _cut(text, MAX_TEXT_CHARACTERS) if text else None


def _block(block: Any) -> str:
    if not isinstance(block, dict):
        return ""
    if block.get("type") == "diff":
        return f"changed {str(block.get('path', ''))[:MAX_TITLE_CHARACTERS]}"
    return _text(block.get("content"))


def _text(content: Any) -> str:
    """Return the text of a block of content; other kinds are named."""
    if not isinstance(content, dict):
        return ""
    text = content.get("text")
    if isinstance(text, str):
        return text
    kind = content.get("type")
    return f"({kind})" if isinstance(kind, str) and kind != "text" else ""


def _plan(entries: Any) -> Plan | None:
    if not isinstance(entries, list):
        return None
    kept = [entry for entry in entries if isinstance(entry, dict)][:MAX_TODOS]
    return Plan(
        tuple(
            {
                "content": one_line(str(entry.get("content", "")), MAX_TITLE_CHARACTERS),
                "status": entry["status"] if entry.get("status") in STATUSES else "pending",
            }
            for entry in kept
        )
    )


def _cost(cost: Any) -> SessionCost | None:
    if not isinstance(cost, dict) or cost.get("currency") != "USD":
        return None
    amount = cost.get("amount")
    if isinstance(amount, bool) or not isinstance(amount, (int, float)) or amount < 0:
        return None
    return SessionCost(min(float(amount), MAX_COST_USD))


def _digest(text: str) -> str:
    """Return what tells a text that is cut from others: an approval is for the whole of it."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]


def _cut(text: str, most: int) -> str:
    more = len(text) - most
    return text if more <= 0 else f"{text[:most]}… ({more:,} more characters)"
