"""Jobs and journal events in a person's words, one line each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from orchestrator.cli.terminal.output import one_line
from orchestrator.jobs.result import JobResult, Usage
from orchestrator.jobs.state import JobRecord, JobState
from orchestrator.jobs.store.journal import EventType, JournalEvent

SYMBOLS = {
    JobState.QUEUED: "·",
    JobState.RUNNING: "▶",
    JobState.WAITING: "⏸",
    JobState.SUCCEEDED: "✔",
    JobState.FAILED: "✘",
    JobState.TIMED_OUT: "⏱",
    JobState.CANCELLED: "⊘",
}

SHORT_ID_CHARACTERS = 12
"""Ten tell the millisecond of the submission, two the job among those of one call, mostly."""

SHORT_APPROVAL_CHARACTERS = 11
"""Eight of them are of a hash: enough to name an approval among thousands."""

EVENT_CHARACTERS = 400
"""Enough of an event for one glance; `fanout logs --json` has it whole."""


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """The shortest beginning of each id that none of the others shares, but at least twelve characters."""
    ordered = sorted(set(ids))
    shared = [0] * (len(ordered) + 1)
    for place in range(1, len(ordered)):
        shared[place] = _shared(ordered[place - 1], ordered[place])
    return {
        job_id: job_id[: max(SHORT_ID_CHARACTERS, shared[place] + 1, shared[place + 1] + 1)]
        for place, job_id in enumerate(ordered)
    }


def _shared(left: str, right: str) -> int:
    """How many first characters two different ids have in common."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(left), len(right)))


def title(record: JobRecord, width: int = 60) -> str:
    """What a job is about: its labels, then the head of its description."""
    labels = ",".join(f"{key}={value}" for key, value in record.labels.items())
    return one_line(f"[{labels}] {record.description}" if labels else record.description, width)


def doing(record: JobRecord) -> str:
    """What a job does now, or what it waits for."""
    if record.waiting_for:
        return f"waits for {record.waiting_for}"
    return "" if record.last_event in (None, record.state) else str(record.last_event)


def asks(record: JobRecord) -> str:
    """What a job that waits for a person waits for, and how to answer; empty for others."""
    if not record.approvals:
        return ""
    only = record.approvals[0][:SHORT_APPROVAL_CHARACTERS] if len(record.approvals) == 1 else None
    return f"waiting: {record.waiting_for} — " + (
        f"fanout approve {only}" if only else "fanout approvals"
    )


def elapsed(record: JobRecord, now: float | None = None) -> str:
    """How long a job has been running or ran; how long it has waited when it never ran."""
    end = record.finished_at or now or time.time()
    return span(max(0.0, end - (record.started_at or record.submitted_at)))


def span(seconds: float) -> str:
    """A length of time at a glance: 0.4s, 12s, 3m05s, 2h10m."""
    if seconds < 10:  # noqa: PLR2004 - below it the tenth matters
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest}s"
    hours, minutes_left = divmod(minutes, 60)
    return f"{minutes}m{rest:02}s" if hours == 0 else f"{hours}h{minutes_left:02}m"


def moment(at: float | None) -> str:
    """A time of day of this machine's zone, with the date."""
    return (
        "" if at is None else datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    )


def event_line(event: JournalEvent) -> str:
    """One journal event as `logs` prints it."""
    clock = datetime.fromtimestamp(event.at).astimezone().strftime("%H:%M:%S.%f")[:-3]
    return f"{clock}  {event.attempt}  {event.type:<13}  {one_line(_told(event), EVENT_CHARACTERS)}".rstrip()


def _told(event: JournalEvent) -> str:
    teller = _TELLERS.get(event.type)
    return _text(event.data) if teller is None else teller(event.data)


def _told_state(data: dict[str, Any]) -> str:
    rest = ", ".join(_text(value) for key, value in data.items() if key != "state" and value)
    return f"{data.get('state')}: {rest}" if rest else str(data.get("state"))


def _told_reply(data: dict[str, Any]) -> str:
    calls = ", ".join(str(call.get("tool")) for call in dicts(data, "calls"))
    return " ".join(filter(None, (_text(data.get("text")), f"→ {calls}" if calls else "")))


def _told_results(data: dict[str, Any]) -> str:
    return "; ".join(
        f"{result.get('tool')}: {_text(result.get('result'))}" for result in dicts(data, "results")
    )


def _told_todos(data: dict[str, Any]) -> str:
    return "; ".join(
        f"{todo.get('status')}: {todo.get('content')}" for todo in dicts(data, "todos")
    )


def _told_answer(data: dict[str, Any]) -> str:
    rest = [_text(data.get(name)) for name in ("arguments", "response", "message")]
    by = f" by {data['by']}" if data.get("by") else ""
    return " ".join(filter(None, (f"{data.get('id')} {data.get('decision')}{by}", *rest)))


def tokens_of(event: JournalEvent) -> int:
    """The tokens that a model's reply took, input and output together."""
    usage = event.data.get("usage")
    if event.type is not EventType.MODEL_REPLY or not isinstance(usage, dict):
        return 0
    return sum(int(str(usage.get(name) or 0)) for name in ("input_tokens", "output_tokens"))


def tool_answers(event: JournalEvent) -> list[dict[str, Any]]:
    """The whole answers of the tools in a tool.result event, or as much as the journal shows of them."""
    session_event = event.data.get("event")
    if not isinstance(session_event, dict):
        return [result["result"] for result in dicts(event.data, "results") if "result" in result]
    content: dict[str, Any] = session_event.get("content") or {}  # type: ignore[assignment] # ADK's JSON
    parts = dicts(content, "parts")
    return [
        part["function_response"].get("response") or {}
        for part in parts
        if "function_response" in part
    ]


def ended_line(result: JobResult) -> str:
    """How a job ended, in one line."""
    words = [f"{result.job_id}  {result.state}"]
    if result.error is not None:
        words.append(one_line(f"{result.error.type}: {result.error.message}"))
    return "  ".join(words)


def used(usage: Usage) -> str:
    """What was consumed, in one line."""
    cost = "" if usage.cost_usd is None else f", ${usage.cost_usd:.4f}"
    tokens = f"{usage.input_tokens:,} in, {usage.output_tokens:,} out"
    return f"{usage.model_calls} model calls, {usage.tool_calls} tool calls, {tokens}{cost}"


def count_states(records: Sequence[JobRecord]) -> str:
    """`12 jobs: 3 running, 9 succeeded`."""
    counts = [(state, sum(record.state is state for record in records)) for state in JobState]
    told = ", ".join(f"{count} {state}" for state, count in counts if count)
    return f"{len(records)} {'job' if len(records) == 1 else 'jobs'}" + (
        f": {told}" if told else ""
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def dicts(data: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects of a list in an event's data; an event of another version may have none."""
    return [item for item in data.get(name) or () if isinstance(item, dict)]


_TELLERS: dict[str, Callable[[dict[str, Any]], str]] = {
    EventType.JOB_STATE: _told_state,
    EventType.SANDBOX_READY: lambda data: f"{data.get('sandbox')} on {data.get('host')}",
    EventType.MODEL_REQUEST: lambda data: f"{data.get('model')}, up to {data.get('tokens')} tokens",
    EventType.MODEL_REPLY: _told_reply,
    EventType.SESSION_EVENT: _told_reply,
    EventType.TOOL_CALL: lambda data: f"{data.get('tool')} {_text(data.get('arguments'))}",
    EventType.TOOL_RESULT: _told_results,
    EventType.TODOS: _told_todos,
    EventType.APPROVAL_REQUESTED: lambda data: (
        f"{data.get('id')} {data.get('tool')} {_text(data.get('arguments'))}"
    ),
    EventType.APPROVAL_RESOLVED: _told_answer,
    EventType.LOG: lambda data: _text(data.get("text")),
    EventType.MESSAGE: lambda data: _text(data.get("text")),
}
