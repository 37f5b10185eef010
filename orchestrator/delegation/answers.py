"""What tools that delegate answer, on either side: jobs and their ends as the model reads them."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from google.adk.events import Event
from google.genai import types
from pydantic import JsonValue, ValidationError

from orchestrator.jobs.changes import SkippedFile
from orchestrator.jobs.failures import JobFailure
from orchestrator.jobs.result import JobResult
from orchestrator.jobs.state import JobRecord, JobState
from orchestrator.jobs.store.journal import EventType, JournalEvent
from orchestrator.workspace.merge import Conflict, MergeReport, NotMerged

log = structlog.get_logger(__name__)

Answer = dict[str, JsonValue]

_Explained = Conflict | NotMerged | SkippedFile


def delivered(result: JobResult, merged: MergeReport | None) -> Answer:
    """A job's result as the model sees it, with what became of its changes where there were any to merge."""
    answer: Answer = {
        "status": "success" if result.success else "error",
        "job_id": result.job_id,
        "summary": result.summary,
        "files_modified": [
            {"path": file.path, "change": str(file.change)} for file in result.files_modified
        ],
        "merge": _merged(merged),
        "execution_seconds": result.execution_seconds,
        "usage": result.usage.model_dump(exclude_none=True),
    }
    if result.output is not None:
        answer["output"] = result.output
    if result.unread_messages:
        answer["unread_messages"] = list(result.unread_messages)
    if result.error is not None:
        answer["error"] = f"{result.state}: {result.error.message}"
    return answer


def _merged(report: MergeReport | None) -> JsonValue:
    """What became of the changes.

    What is neither applied nor in conflict is told only where there is any.
    """
    if report is None:
        return {"applied": [], "conflicts": []}
    merged: dict[str, JsonValue] = {
        "applied": [file.path for file in report.applied],
        "conflicts": _with_reasons(report.conflicts),
    }
    left_out: dict[str, Sequence[_Explained]] = {
        "refused": report.refused,
        "failed": report.failed,
        "skipped": report.skipped,
    }
    return merged | {name: _with_reasons(entries) for name, entries in left_out.items() if entries}


def _with_reasons(entries: Sequence[_Explained]) -> JsonValue:
    return [{"path": entry.path, "reason": entry.reason} for entry in entries]


def refused(failure: Exception, job_id: str = "") -> Answer:
    """A failure as the model sees it."""
    if isinstance(failure, ValidationError):
        first = failure.errors()[0]
        message = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    elif isinstance(failure, JobFailure):
        message = str(failure)
    else:
        log.error("task failed unexpectedly", error=type(failure).__name__, exc_info=failure)
        message = f"The task failed unexpectedly ({type(failure).__name__})."
    answer: Answer = {"status": "error", "error": message}
    return {**answer, "job_id": job_id} if job_id else answer


def shown(record: JobRecord) -> Answer:
    """A job in a list."""
    return {
        "job_id": record.id,
        "agent": record.agent,
        "state": str(record.state),
        "last_event": record.last_event,
    }


def progress(event: JournalEvent, agent: str) -> str | None:
    """A line about a job's progress, or None where an event tells nothing new."""
    if event.type is EventType.JOB_STATE:
        why = f": {event.data['reason']}" if event.data["state"] == JobState.WAITING else ""
        return f"{agent} {event.data['state']}{why}"
    if event.type is EventType.TOOL_CALL:
        return f"{agent} {event.data['tool']}"
    if event.type is EventType.LOG:
        return f"{agent}: {str(event.data.get('text', '')).splitlines()[-1]}"
    return None


def partial(line: str, event: JournalEvent) -> Event:
    """Progress as ADK shows it: at once, to people only, never stored."""
    return Event(
        author="task",
        partial=True,
        custom_metadata={"job_id": event.job_id, "type": str(event.type), "event_id": event.id},
        content=types.Content(role="model", parts=[types.Part(text=line + "\n")]),
    )
