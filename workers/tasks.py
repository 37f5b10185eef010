"""The one Celery task: run a job, given its id."""

from __future__ import annotations

import inspect
import time
from typing import TYPE_CHECKING, Any

import structlog
from celery.exceptions import Ignore

from fanout.orchestrator.jobs import failures
from fanout.orchestrator.jobs.result import JobResult, Unfinished
from fanout.orchestrator.jobs.state import TERMINAL_STATES, JobState
from fanout.orchestrator.jobs.store.queue import RUN_JOB, SENT_AT
from fanout.orchestrator.jobs.store.signatures import HEADER
from fanout.orchestrator.shortening import count

from . import sandbox
from .bootstrap import worker
from .celery_app import app
from .pool import run_coroutine

if TYPE_CHECKING:
    from .attempt.job_runner import Progress

log = structlog.get_logger(__name__)

PROGRESS_SECONDS = 1.0
"""The time between two progress events of a job: dashboards keep all of them."""


class JobNotSucceeded(Exception):
    """Makes Celery and Flower show a job as failed; its text is one line."""


def _forget_frames(_task: Any, error: Exception, *_: Any) -> None:
    """Take the traceback from the error of a job that failed; its text is all that is shown.

    The frames in it refer to the error, and so would keep each other and what the job has left.
    """
    if isinstance(error, JobNotSucceeded):
        error.__traceback__ = None


@app.task(  # type: ignore[untyped-decorator] # Celery ships no types
    name=RUN_JOB, bind=True, throws=(JobNotSucceeded,), on_failure=_forget_frames
)
def run_job(self: Any, job_id: str) -> str:
    """Run the next attempt of a job and return one line about its success, for dashboards.

    Raises:
        JobNotSucceeded: The job has failed, or was not finished in time.
        Ignore: The job was cancelled, or has not ended; dashboards have an event that says so.
    """
    current = worker()
    message_id = str(self.request.id)
    headers = self.request.headers or {}
    if not current.signer.accepts(message_id, job_id, headers.get(HEADER)):
        log.warning("message without a valid signature", refused=current.signer.refused)
        raise _shown(self, Unfinished("its message has no valid signature", has_run=False))
    number = message_id.rpartition(".")[2]
    dispatch = number if number.isdecimal() else ""
    report = _reporter(self)
    result = run_coroutine(current.run_job(job_id, report, dispatch, headers.get(SENT_AT)))
    if isinstance(result, Unfinished) and result.has_run:
        current.parked.show_cancelled = _show_cancelled
        current.parked.add(job_id, message_id)
    if isinstance(result, Unfinished) or result.state is JobState.CANCELLED:
        raise _shown(self, result)
    if not result.success:
        raise JobNotSucceeded(_in_one_line(result))
    return _in_one_line(result)


def _shown(task: Any, end: JobResult | Unfinished) -> Ignore:
    """Show an end for which Celery has no event, and return what keeps it from showing another."""
    if isinstance(end, JobResult):
        event = {"kind": "revoked", "result": _in_one_line(end)}
    elif end.has_run:
        event = {"kind": "waiting", "result": end.why}
    elif end.why == JobState.CANCELLED:
        event = {"kind": "revoked", "result": "cancelled before it ran"}
    elif end.why in TERMINAL_STATES:  # it keeps the outcome that it may have
        event = {"kind": "rejected"}
    else:
        event = {"kind": "rejected", "result": end.why}
    if app.consumer is not None:
        app.consumer.show(task.request.id, **event)
    return Ignore()


def _show_cancelled(message_id: str) -> None:
    if app.consumer is not None:
        app.consumer.show(message_id, "revoked", result="cancelled while it waited")


def _reporter(task: Any) -> Progress:
    """Return a function that sends progress events, which Flower shows in its result column.

    At the end of the job the column shows its outcome instead.
    """
    task_id, consumer, sent_at = task.request.id, app.consumer, 0.0

    def report(line: str) -> None:
        nonlocal sent_at
        if consumer is not None and time.monotonic() - sent_at >= PROGRESS_SECONDS:
            sent_at = time.monotonic()
            consumer.show(task_id, "progress", result=line)

    return report


def _in_one_line(result: JobResult) -> str:
    tokens = result.usage.input_tokens + result.usage.output_tokens
    ended = f"{result.state}: {_reason(result.error.type)}" if result.error else str(result.state)
    return (
        f"{ended} · {count(result.files_count, 'file')}"
        f" · {count(result.usage.model_calls, 'model call')} · {count(tokens, 'token')}"
        f" · {result.execution_seconds:.1f} s"
    )


def _reason(kind: str) -> str:
    """Return what a kind of failure means: a message may quote contents."""
    known = getattr(failures, kind, None) or getattr(sandbox, kind, None)
    said = (inspect.getdoc(known) or "").partition("\n")[0].rstrip(".") if known else ""
    return said or kind
