"""The results of the tools that delegate, as the model reads them, and their progress events."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from google.adk.events import Event
from google.genai import types
from pydantic import JsonValue, ValidationError

from ..deep_agent import TaskRecord, TaskResult, first_fault
from ..jobs.changes import SkippedFile
from ..jobs.failures import JobFailure
from ..jobs.result import JobResult
from ..jobs.state import JobRecord, JobState
from ..jobs.store.journal import EventType, JournalEvent
from ..logs import Logger, describe_error
from ..workspace.merge_report import Conflict, HeldBack, MergeReport, NotMerged

log = Logger(__name__)

LEFT_OUT = ("refused", "failed", "skipped", "held_back_for_a_person")
"""Kinds of changes that a merge leaves out without a conflict, as the model reads them."""

MAX_VALUE_CHARACTERS = 20_000
"""The most that an agent reads of a script's value: about 5,000 tokens."""

_Explained = Conflict | HeldBack | NotMerged | SkippedFile


def task_result(
    result: JobResult,
    merged: MergeReport | None,
    landed: Mapping[str, JsonValue] = MappingProxyType({}),
    sides: Mapping[str, Mapping[str, JsonValue]] = MappingProxyType({}),
    *,
    agent: str,
) -> TaskResult:
    """Return the tool result of a job that has ended.

    Args:
        result: The job's result.
        merged: The report of the merge of its changes; None if a job's journal has it.
        landed: The data of its `child.landed`, which has the entries of `merge_entries`.
        sides: The sides of each conflicting path.
        agent: The name of the job's agent.
    """
    error = None
    verified = result.verified.model_dump() if result.verified is not None else None
    if not result.success:
        error = f"{result.state}: {result.error.message}" if result.error else str(result.state)
    elif landed.get("outcome") == "out":
        error = f"Its changes are not in your files. {landed['reason']}"
        broken = landed.get("verification")
        verified = broken if isinstance(broken, dict) else verified
    files = [{"path": file.path, "change": str(file.change)} for file in result.files_modified]
    return TaskRecord(
        task_id=result.job_id,
        agent=agent,
        summary=result.summary,
        files_modified=files,
        files_omitted=result.files_omitted or None,
        merge=_merge_summary(
            _read_landed(result, landed) if merged is None else merge_entries(merged), sides
        ),
        execution_seconds=result.execution_seconds,
        usage=result.usage.model_dump(exclude_none=True),
        verified=verified,
        output=result.output,
        unread_messages=result.unread_messages or None,
        error=error,
    ).answer()


def script_result(found: TaskResult) -> TaskResult:
    """Return the tool result of a script: its value, and what is wrong, but none of its tasks.

    Args:
        found: The result of its job, as of `task_result`.
    """
    merge = found.get("merge")
    faults = merge.keys() - {"applied", "note"} if isinstance(merge, dict) else set()
    kept = [
        name for name in ("status", "task_id", "state", "sent_back", "error") if found.get(name)
    ]
    result: TaskResult = {name: found[name] for name in kept}
    if isinstance(merge, dict) and any(merge[name] for name in faults):
        result["merge"] = {name: merge[name] for name in sorted(faults) if merge[name]}
    if found.get("output") is None:
        return result
    text = json.dumps(found["output"], ensure_ascii=False)
    if len(text) <= MAX_VALUE_CHARACTERS:
        return {**result, "value": found["output"]}
    return {
        **result,
        "truncated": f"The value has {len(text):,} characters, of which you see the beginning: let "
        "the script return less, or have its agents write files.",
        "value": text[:MAX_VALUE_CHARACTERS],
    }


def sent_back_result(job_id: str, reason: str) -> TaskResult:
    """Return the tool result of a task whose changes did not land, and that corrects them now."""
    return {
        "status": "success",
        "task_id": job_id,
        "state": "reworking",
        "sent_back": reason,
    }


def started_result(job_id: str) -> TaskResult:
    """Return the tool result of a call that has started a task, or sent it a message."""
    return {"status": "success", "task_id": job_id}


def merge_entries(report: MergeReport) -> TaskResult:
    """Return what a merge did: `paths` of what is in, `conflicts`, and what was left out."""
    kinds = (report.refused, report.failed, report.skipped, report.held_back)
    left_out: dict[str, Sequence[_Explained]] = dict(zip(LEFT_OUT, kinds, strict=True))
    return {
        "paths": [file.path for file in report.applied],
        "conflicts": _with_reasons(report.conflicts),
        **{name: _with_reasons(entries) for name, entries in left_out.items() if entries},
    }


def _read_landed(result: JobResult, landed: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """Return the data of a `child.landed`; that of older releases has no `paths`."""
    if "paths" in landed or landed.get("outcome") != "in":
        return landed
    conflicts = {str(one["path"]) for one in _records(landed.get("conflicts"))}
    paths = [file.path for file in result.files_modified if file.path not in conflicts]
    return {**landed, "paths": [*paths]}


def _merge_summary(
    landed: Mapping[str, JsonValue], sides: Mapping[str, Mapping[str, JsonValue]]
) -> dict[str, JsonValue]:
    """Return what a merge did for the model; kinds without an entry are left out, but for two."""
    conflicts = _records(landed.get("conflicts"))
    paths, applied = landed.get("paths"), landed.get("applied")
    named = len(paths) if isinstance(paths, list) else 0
    merged: dict[str, JsonValue] = {
        "applied": applied if isinstance(applied, int) else named,
        "conflicts": [{**one, **sides.get(str(one["path"]), {})} for one in conflicts],
    }
    if landed.get("outcome") == "in" and (reason := landed.get("reason")):
        merged["note"] = reason
    return merged | {name: landed[name] for name in LEFT_OUT if landed.get(name)}


def _records(listed: JsonValue) -> list[dict[str, JsonValue]]:
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _with_reasons(entries: Sequence[_Explained]) -> JsonValue:
    return [{"path": entry.path, "reason": entry.reason} for entry in entries]


def failed_task(failure: Exception, job_id: str = "") -> TaskResult:
    """Return the tool result of a task that has no result of a job.

    Args:
        failure: See `task_error`.
        job_id: The job, if there is one.
    """
    return TaskRecord(task_id=job_id, error=_why(failure), execution_seconds=0.0).answer()


def task_error(failure: Exception, job_id: str = "") -> TaskResult:
    """Return the error result of a tool for tasks that could not do what it was asked.

    Args:
        failure: A `JobFailure` or a `ValidationError` is quoted; of any other exception only the
            type is named, because its text may hold content.
        job_id: The job, if there is one.
    """
    found: TaskResult = {"status": "error", "error": _why(failure)}
    return {**found, "task_id": job_id} if job_id else found


def _why(failure: Exception) -> str:
    if isinstance(failure, ValidationError):
        return first_fault(failure)
    if isinstance(failure, JobFailure):
        return str(failure)
    log.error("task failed unexpectedly", **describe_error(failure))
    return f"The task failed unexpectedly ({type(failure).__name__})."


def job_summary(record: JobRecord) -> TaskResult:
    """Return a job's state for a list of jobs."""
    return {
        "task_id": record.id,
        "agent": record.agent,
        "state": str(record.state),
        "last_event": record.last_event,
    }


def progress_line(event: JournalEvent, agent: str) -> str | None:
    """Return one line about a job's progress; None for an event without news.

    Args:
        event: An event of the job's journal.
        agent: The name of the job's agent.
    """
    if event.type is EventType.JOB_STATE:
        why = f": {event.data['reason']}" if event.data["state"] == JobState.WAITING else ""
        return f"{agent} {event.data['state']}{why}"
    if event.type is EventType.TOOL_CALL:
        return f"{agent} {event.data['tool']}"
    if event.type is EventType.LOG:
        return f"{agent}: {str(event.data.get('text', '')).splitlines()[-1]}"
    return None


def progress_event(line: str, event: JournalEvent) -> Event:
    """Return an ADK event that shows a line of progress to people; it is never stored.

    Args:
        line: The line, as of `progress_line`.
        event: The event of the job's journal that it was made from.
    """
    return Event(
        author="task",
        partial=True,
        custom_metadata={"job_id": event.job_id, "type": str(event.type), "event_id": event.id},
        content=types.Content(role="model", parts=[types.Part(text=line + "\n")]),
    )
