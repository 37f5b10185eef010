"""Formats job records, results and journal events as single lines for people."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from ... import shortening
from ...jobs.budget import BudgetState
from ...jobs.failure_texts import FAILURE_TEXTS, next_step, what_happened
from ...jobs.result import ContextStats, JobError, JobResult, Usage
from ...jobs.spec import CALL_LABEL, PHASE_LABEL
from ...jobs.state import Activity, JobRecord, JobState
from ...jobs.store.journal import EventType, JournalEvent
from ...shortening import count
from .output import one_line, stdout_is_terminal

if TYPE_CHECKING:
    from ...scripts.progress import PhaseProgress, ScriptProgress

SYMBOLS = {
    JobState.QUEUED: "·",
    JobState.RUNNING: "▶",
    JobState.WAITING: "⏸",
    JobState.SUCCEEDED: "✔",
    JobState.FAILED: "✘",
    JobState.TIMED_OUT: "⏱",
    JobState.CANCELLED: "⊘",
}

FULL_IDS: ContextVar[bool] = ContextVar("FULL_IDS", default=False)
"""Whether ids are printed in full: the option --full-ids of all commands."""

_JOB_ID = re.compile(r"(?<![/\w.-])(?=[a-z]*\d)[0-9a-z]{26}(?![/\w-]|\.\w)")
"""The form of a job's id that fanout has made, outside of paths."""
_APPROVAL_ID = re.compile(r"\bap_[0-9a-f]{9,}\b")

CANCELLED = FAILURE_TEXTS["JobCancelled"].what
"""The failures that a job's state already names, so that no more is said."""

SHORT_APPROVAL_CHARACTERS = 11
"""The length of a short approval id. Eight characters are of a hash: enough to identify an approval
among thousands."""

ASKS_CHARACTERS = 36
"""The longest text of what a job waits for: with the command to answer it, it fits on a line of a
terminal."""

NOW_CHARACTERS = 160
"""The longest text of what a job does, or of why it failed, in a list: two lines of a narrow
terminal."""

TITLE_CHARACTERS = 200
"""The longest title where no terminal sets a width: a description may have hundreds of kilobytes.
"""

EVENT_CHARACTERS = 400
"""The longest event in `fanout logs`; `fanout logs --json` prints it in full."""

PHASE_CHARACTERS = 40
"""The longest name of a script's phase: the counts behind it are more important."""
LABEL_CHARACTERS = 40
"""The longest label of a call for which a script waits: three fit on a line."""
MOST_LABELS = 3
"""The most calls that a line names for which a script waits."""


_ACTIVITIES = {
    "start": "starting the agent",
    "environment": "preparing its environment",
    "sandbox": "starting its sandbox",
    "queue": "waiting for the model's rate limit",
    "verification": "verifying",
    "landing": "landing",
}
"""The texts for kinds of activities, where the kinds' names are not used."""

_ENGINE_ID = re.compile(r"\b[0-9a-f]{64}\b")
"""The form of an id of a container or a network in an engine's error; `fanout logs --json` has it.
The host of a sandbox is such an id, too, and left out."""
_SOME_ID = "(id)"

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[^a-z0-9])")
"""A full stop before a small letter or a number is part of an abbreviation or of a name."""


def short_id(job_id: str) -> str:
    """Return a job's id in its form for people: its end, or all of it with --full-ids."""
    return job_id if FULL_IDS.get() else shortening.short_id(job_id)


def result_id(job_id: str) -> str:
    """Return a job's id in its form for results: complete for a program that reads it."""
    return short_id(job_id) if stdout_is_terminal() else job_id


def with_short_ids(text: str) -> str:
    """Return a text of another part with its complete ids replaced by short ones."""
    text = _APPROVAL_ID.sub(lambda found: short_approval(found[0]), text)
    return _JOB_ID.sub(lambda found: short_id(found[0]), text)


def short_approval(approval_id: str) -> str:
    """Return an approval's id in its form for people: its beginning, or all with --full-ids."""
    return approval_id if FULL_IDS.get() else approval_id[:SHORT_APPROVAL_CHARACTERS]


def title(record: JobRecord, width: int = TITLE_CHARACTERS) -> str:
    """Return a job's labels and the beginning of its description.

    A call of a script begins with the label that the script's author gave it. Its phase is left
    out: the script's own lines list the phases.
    """
    labels, text = dict(record.labels), record.description
    if record.parent_id is not None:
        labels.pop(PHASE_LABEL, None)
        if label := labels.pop(CALL_LABEL, ""):
            text = f"{label}: {text}"
    shown = ",".join(f"{key}={value}" for key, value in labels.items())
    return one_line(f"[{shown}] {text}" if shown else text, width)


def doing(record: JobRecord, now: float | None = None) -> str:
    """Return a job's current activity, what it waits for, or why it did not succeed."""
    if record.reason:
        return reason(record)
    if record.waiting_for:
        return one_line(f"waits for {record.waiting_for}", NOW_CHARACTERS)
    return newest(record, now)


class Working(Protocol):
    """What is known of a job that works, in a record and in a view of the installation."""

    @property
    def state(self) -> str:
        """The job's state."""

    @property
    def activity(self) -> Activity | None:
        """What it does at this moment."""

    @property
    def last_event(self) -> str | None:
        """Its newest event, in one line."""


def newest(job: Working, now: float | None = None) -> str:
    """Return a job's current activity, or its newest event unless that is its state."""
    if job.activity is not None:
        return one_line(at_work(job.last_event, job.activity, now), NOW_CHARACTERS)
    return "" if job.last_event in (None, job.state) else one_line(job.last_event, NOW_CHARACTERS)


def at_work(last_event: str | None, activity: Activity, now: float | None = None) -> str:
    """Return a job's current activity, its duration, and its progress.

    Args:
        last_event: The job's newest event, in one line.
        activity: What it does.
        now: The time, in seconds since the epoch; None: now.
    """
    seconds = max(0, round((now or time.time()) - activity.since))
    what = _ACTIVITIES.get(activity.kind, activity.kind)
    if activity.kind == "tool" and str(last_event or "").startswith(activity.tool or " "):
        what = str(last_event)
    facts = [what, span(seconds) if seconds >= 10 else f"{seconds}s"]  # noqa: PLR2004 - as `span`
    if activity.attempt > 1:
        facts.append(f"try {activity.attempt}" + (f": {activity.error}" if activity.error else ""))
    elif activity.error:
        facts.append(activity.error)
    if activity.tokens:
        facts.append(f"~{activity.tokens:,} tokens")
    return ", ".join(facts)


def reason(record: JobRecord) -> str:
    """Return why a job did not succeed, in one line: the first sentence; empty for others."""
    return first_sentence(with_short_ids(record.reason)) if record.reason else ""


def first_sentence(text: str) -> str:
    """Return the first sentence of an error as one line."""
    first, *_ = text.strip().splitlines() or [""]
    return one_line(_SENTENCE_END.split(first, maxsplit=1)[0], NOW_CHARACTERS)


def asks(record: JobRecord) -> str:
    """Return the approval that a job waits for and the command to answer it; empty for others."""
    if not record.approvals:
        return ""
    only = short_approval(record.approvals[0]) if len(record.approvals) == 1 else None
    command = f"fanout approve {only}" if only else "fanout approvals"
    return f"waiting: {one_line(record.waiting_for or '', ASKS_CHARACTERS)} — {command}"


def elapsed(record: JobRecord, now: float | None = None) -> str:
    """Return how long a job has been running or ran, or has waited if it never ran."""
    end = record.finished_at or now or time.time()
    return between(record.started_at or record.submitted_at, end)


def between(begin: float, end: float) -> str:
    """Format the time between two moments, in seconds since the epoch, whose clocks may differ."""
    return span(max(0.0, end - begin))


def span(seconds: float) -> str:
    """Format a duration: 0.4s, 12s, 3m05s, 2h10m."""
    if seconds < 10:  # noqa: PLR2004 - below it, tenths matter
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest}s"
    hours, minutes_left = divmod(minutes, 60)
    return f"{minutes}m{rest:02}s" if hours == 0 else f"{hours}h{minutes_left:02}m"


def moment(at: float | None) -> str:
    """Format a Unix time as date and time in this machine's time zone."""
    return "" if at is None else f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S}"


def event_line(event: JournalEvent) -> str:
    """Format a journal event as `fanout logs` prints it."""
    clock = datetime.fromtimestamp(event.at).astimezone().strftime("%H:%M:%S.%f")[:-3]
    text = one_line(_formatted(event), EVENT_CHARACTERS)
    return f"{clock}  {event.attempt}  {event.type:<13}  {text}".rstrip()


def _formatted(event: JournalEvent) -> str:
    formatter = _FORMATTERS.get(event.type)
    return plain_text(event.data) if formatter is None else formatter(event.data)


def _format_state(data: dict[str, Any]) -> str:
    error = data.get("error")
    known = {**data, "error": _error(error)} if isinstance(error, dict) else data
    rest = ", ".join(
        _ENGINE_ID.sub(_SOME_ID, plain_text(value))
        for key, value in known.items()
        if key not in {"state", "host"} and value
    )
    state = str(data.get("state"))
    if state == JobState.QUEUED and data.get("reason"):
        state = "queued again"
    return f"{state}: {rest}" if rest else state


def _error(error: Mapping[str, Any]) -> str:
    return what_happened(str(error.get("type")), str(error.get("message") or ""))


def _format_reply(data: dict[str, Any]) -> str:
    calls = ", ".join(str(call.get("tool")) for call in dicts(data, "calls"))
    return " ".join(filter(None, (plain_text(data.get("text")), f"→ {calls}" if calls else "")))


def _format_results(data: dict[str, Any]) -> str:
    return "; ".join(
        f"{result.get('tool')}: {plain_text(result.get('result'))}"
        for result in dicts(data, "results")
    )


def _format_todos(data: dict[str, Any]) -> str:
    return "; ".join(
        f"{todo.get('status')}: {todo.get('content')}" for todo in dicts(data, "todos")
    )


def _format_answer(data: dict[str, Any]) -> str:
    rest = [plain_text(data.get(name)) for name in ("arguments", "response", "message")]
    who = data.get("person") or data.get("by")
    by = f" by {who}" if who else ""
    return " ".join(
        filter(None, (f"{short_approval(str(data.get('id')))} {data.get('decision')}{by}", *rest))
    )


def _format_connection(data: dict[str, Any]) -> str:
    reason = f": {data['reason']}" if data.get("reason") else ""
    host = f"{data.get('host')}:{data.get('port')}"
    if not data.get("allowed"):
        return f"{host} refused{reason}"
    sent, received = data.get("sent_bytes"), data.get("received_bytes")
    return f"{host} {sent} bytes sent, {received} received in {data.get('seconds')} s{reason}"


def reply_tokens(event: JournalEvent) -> int:
    """Return the input and output tokens of a model's reply; 0 for other events."""
    usage = event.data.get("usage")
    if event.type is not EventType.MODEL_REPLY or not isinstance(usage, dict):
        return 0
    return sum(int(str(usage.get(name) or 0)) for name in ("input_tokens", "output_tokens"))


def failure(event: JournalEvent) -> str:
    """Return why a job failed, if this event is its end with a reason; empty for others."""
    error = event.data.get("error") if event.ends_job else None
    return _error(error) if isinstance(error, dict) else ""


def tool_answers(event: JournalEvent) -> list[dict[str, Any]]:
    """Return the tools' full results in a tool.result event, or the journal's excerpts of them."""
    session_event = event.data.get("event")
    if not isinstance(session_event, dict):
        return [result["result"] for result in dicts(event.data, "results") if "result" in result]
    content = session_event.get("content")
    return [
        part["function_response"].get("response") or {}
        for part in dicts(content if isinstance(content, dict) else {}, "parts")
        if "function_response" in part
    ]


def ended_line(result: JobResult) -> str:
    """Format a job's final state and error as one line."""
    ended = f"{short_id(result.job_id)}  {result.state}"
    why = "" if result.error is None else one_line(happened(result.error))
    return ended if why in {"", CANCELLED} else f"{ended}  {why}"


def happened(error: JobError) -> str:
    """Return a description of how a job did not succeed, for people."""
    return what_happened(error.type, error.message)


def failure_lines(result: JobResult) -> list[str]:
    """Return how a job did not succeed, and what to do; nothing for others."""
    if result.error is None:
        return []
    step = next_step(result.error.type, short_id(result.job_id))
    return [happened(result.error), f"  {step}"]


def used(usage: Usage, seconds: float | None = None) -> str:
    """Format model calls, tool calls, tokens, cost, and the time if it is given, as one line."""
    price = "" if usage.cost_usd is None else f", {cost(usage)}"
    took = "" if seconds is None else f", {span(seconds)}"
    tokens = f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"
    calls = f"{count(usage.model_calls, 'model call')}, {count(usage.tool_calls, 'tool call')}"
    return f"{calls}, {tokens}{price}{took}"


def cost(usage: Usage) -> str:
    """Format the cost; `-` if the models' prices are unknown."""
    return "-" if usage.cost_usd is None else dollars(usage.cost_usd)


def budget_lines(budget: BudgetState) -> list[str]:
    """Format what of each limit is reserved for model calls in progress, and what is left."""
    return [
        f"Of {limit}: {reserved} reserved, {left} left"
        for limit, _, reserved, left in budget_amounts(budget)
    ]


def budget_amounts(budget: BudgetState) -> list[tuple[str, str, str, str]]:
    """Format each limit of a budget, and what of it is used, reserved and left."""
    used, found = budget.used, []
    if (most := budget.max_cost_usd) is not None:
        parts = used.cost_usd or 0, budget.reserved_cost_usd, budget.left_cost_usd or 0
        spent, reserved, left = map(dollars, parts)
        found.append((f"max_cost_usd={most:,}", spent, reserved, left))
    if (most_tokens := budget.max_tokens) is not None:
        tokens = used.input_tokens + used.output_tokens
        numbers = tokens, budget.reserved_tokens, budget.left_tokens or 0
        spent, reserved, left = map("{:,}".format, numbers)
        found.append((f"max_tokens={most_tokens:,}", spent, reserved, left))
    return found


def dollars(usd: float) -> str:
    """Format an amount of money."""
    return f"${usd:,.4f}"


def summarized(context: ContextStats) -> str | None:
    """Format what summaries did to a job's conversation as one line; None without any."""
    if not context.summary_count:
        return None
    sizes = f"{context.original_token_count:,} → {context.summarized_token_count:,} tokens"
    summaries = count(context.summary_count, "summary", "summaries")
    return f"{summaries} of {count(context.messages_summarized, 'message')}, {sizes}"


def in_tree_order(records: Sequence[JobRecord]) -> list[JobRecord]:
    """Return the records in their order, but with each job's children directly below it."""
    children: dict[str | None, list[JobRecord]] = {}
    known = {record.id for record in records}
    for record in records:
        parent = record.parent_id if record.parent_id in known else None
        children.setdefault(parent, []).append(record)
    ordered, below = [], children.get(None, [])[::-1]
    while below:
        ordered.append(below.pop())
        below += children.get(ordered[-1].id, [])[::-1]
    return ordered


def count_states(records: Sequence[JobRecord]) -> str:
    """Return a summary such as `12 jobs: 3 running, 9 succeeded`."""
    counted = states(Counter(record.state for record in records))
    jobs = count(len(records), "job")
    return f"{jobs}: {counted}" if counted else jobs


def states(counts: Mapping[str, int]) -> str:
    """Return how many jobs are in which state, such as `3 running, 9 succeeded`."""
    return ", ".join(f"{counts[state]} {state}" for state in JobState if counts.get(state))


def plain_text(value: Any) -> str:
    """Return a text as it is, another value as JSON, and nothing for None."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def dicts(data: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the objects in a list of an event's data; events of other versions may lack it."""
    return [item for item in data.get(name) or () if isinstance(item, dict)]


def verified_tasks(data: Mapping[str, Any]) -> str:
    """Return one line about the verification of tasks' changes."""
    verdict = "passes" if data.get("exit_code") == 0 else "fails"
    if data.get("at_end"):
        return f"checking the files at the end: {verdict}"
    tasks, all_of_them = len(data.get("children") or ()), data.get("of")
    number = f"{tasks} of {all_of_them}" if isinstance(all_of_them, int) else str(tasks)
    changes = "change" if number in {"1", "1 of 1"} else "changes together"
    what = f"{number} {changes}" if tasks else "the files without them"
    return f"checking {what}: {verdict}"


def _format_landing(data: dict[str, Any]) -> str:
    tasks = len(data.get("children") or ())
    return (
        f"merges the changes of {count(tasks, 'task')}"
        if tasks
        else "an unfinished landing was undone"
    )


_LANDED = {"in": "landed", "out": "left out", "sent back": "returned to its agent"}
"""The outcomes of a task's changes, in words for people."""


def _format_landed(data: dict[str, Any]) -> str:
    conflicts = ", ".join(str(one.get("path")) for one in dicts(data, "conflicts"))
    why = data.get("reason") or (f"conflicts: {conflicts}" if conflicts else "")
    outcome = _LANDED.get(str(data.get("outcome")), data.get("outcome"))
    return f"{short_id(str(data.get('id')))} {outcome}" + (f": {why}" if why else "")


def _format_script_calls(data: dict[str, Any]) -> str:
    calls = dicts(data, "calls")
    shown = ", ".join(f"{call.get('function')} {call.get('label', '')}".strip() for call in calls)
    return f"{count(len(calls), 'call')}: {shown}"


def _format_script_result(data: dict[str, Any]) -> str:
    reused = f", the result of {short_id(str(data.get('job')))}" if data.get("reused") else ""
    return f"{'' if data.get('ok') else 'failed: '}{data.get('label') or data.get('key')}{reused}"


def _format_script_end(data: dict[str, Any]) -> str:
    names = {"asked": "asked for", "never_run": "never run"}
    counts = [
        f"{data[name]} {names.get(name, name)}"
        for name in ("asked", "answered", "kept", "reused", "failed", "cancelled", "never_run")
        if data.get(name)
    ]
    return "; ".join([", ".join(counts), *map(str, data.get("reasons") or ())])


def script_phase(phase: PhaseProgress) -> str:
    """Format a phase of a script as one line: its name, and how its calls stand."""
    counts = {
        "asked": phase.asked,
        "answered": phase.answered,
        "reused": phase.reused,
        "failed": phase.failed,
        "waiting": phase.waiting,
    }
    shown = [f"{number:,} {name}" for name, number in counts.items() if number or name == "asked"]
    return (
        f"{one_line(phase.name, PHASE_CHARACTERS) or 'Before the first phase'}: {', '.join(shown)}"
    )


def script_waits(progress: ScriptProgress) -> str:
    """Format what a script waits for as one line; empty if it waits for nothing."""
    if not progress.waits_for_count:
        return ""
    named = ", ".join(
        one_line(label, LABEL_CHARACTERS) for label in progress.waits_for[:MOST_LABELS]
    )
    more = progress.waits_for_count - len(progress.waits_for[:MOST_LABELS])
    return f"waits for {named}" + (f" and {more:,} more" if more else "")


def script_lines(progress: ScriptProgress, most: int) -> list[str]:
    """Return a line for each of a script's newest phases, and one for what it waits for."""
    lines = [script_phase(phase) for phase in progress.phases[-most:]]
    waits = script_waits(progress)
    return [*lines, *([f"  {waits}"] if waits else [])]


_FORMATTERS: dict[str, Callable[[dict[str, Any]], str]] = {
    EventType.JOB_STATE: _format_state,
    EventType.SANDBOX_READY: lambda data: (
        f"{data.get('sandbox')}{', with the files of the previous attempt' if data.get('resumed') else ''}"
    ),
    EventType.MODEL_REQUEST: lambda data: str(data.get("model")),
    EventType.MODEL_STATE: lambda data: f"{data.get('model')} {data.get('why')}",
    EventType.MODEL_REPLY: _format_reply,
    EventType.SESSION_EVENT: _format_reply,
    EventType.TOOL_CALL: lambda data: f"{data.get('tool')} {plain_text(data.get('arguments'))}",
    EventType.TOOL_RESULT: _format_results,
    EventType.TODOS: _format_todos,
    EventType.APPROVAL_REQUESTED: lambda data: (
        f"{short_approval(str(data.get('id')))} {data.get('tool')} {plain_text(data.get('arguments'))}"
    ),
    EventType.APPROVAL_RESOLVED: _format_answer,
    EventType.SCRIPT_STARTED: lambda data: f"interpreter {data.get('interpreter', '')}",
    EventType.SCRIPT_CALL: _format_script_calls,
    EventType.SCRIPT_RESULT: _format_script_result,
    EventType.SCRIPT_PHASE: lambda data: plain_text(data.get("name")),
    EventType.SCRIPT_LOG: lambda data: "; ".join(map(str, data.get("lines") or ())),
    EventType.SCRIPT_ENDED: _format_script_end,
    EventType.LOG: lambda data: plain_text(data.get("text")),
    EventType.MESSAGE: lambda data: plain_text(data.get("text")),
    EventType.VERIFY: lambda data: (
        verified_tasks(data)
        if "children" in data
        else f"exit code {data.get('exit_code')}: {data.get('command')}"
    ),
    EventType.CHECKPOINT: lambda data: "the changes so far" if data.get("changes") else "",
    EventType.CHILD_SUBMITTED: lambda data: f"{short_id(str(data.get('id')))} {data.get('agent')}",
    EventType.CHILD_FINISHED: lambda data: f"{short_id(str(data.get('id')))} {data.get('state')}",
    EventType.LANDING: _format_landing,
    EventType.CHILD_LANDED: _format_landed,
    EventType.NETWORK_CONNECTION: _format_connection,
}
