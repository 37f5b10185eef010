"""The one Celery task: run a job, given its id."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from orchestrator.jobs.result import JobResult
from orchestrator.jobs.store.queue import RUN_JOB
from workers.attempt.job_runner import Progress
from workers.bootstrap import worker
from workers.celery_app import app
from workers.pool import wait_for

PROGRESS_SECONDS = 1.0
"""At most one progress event a job and second: dashboards keep them all."""
_dashboards = ThreadPoolExecutor(1, "dashboards")
"""Sends progress events: a thread of its own, because Celery blocks, and for long when its Redis is
away."""


class JobNotSucceeded(Exception):
    """Makes Celery and Flower show a job as failed; its text is one line."""


@app.task(name=RUN_JOB, bind=True, throws=(JobNotSucceeded,))  # type: ignore[untyped-decorator] # Celery ships no types
def run_job(self: Any, job_id: str) -> str:
    """Run the next attempt of a job; one line about how it ended, for dashboards."""
    current = worker()
    report = _reporter(self)
    result = wait_for(current.agents, current.runner.run(job_id, report))
    if result is None:
        return "not ended here"
    if not result.success:
        raise JobNotSucceeded(_in_one_line(result))
    return _in_one_line(result)


def _reporter(task: Any) -> Progress:
    """Sends progress events that Flower shows in its result column.

    Whatever stands there while a job runs is replaced by its outcome.
    """
    task_id, hostname, sent_at = task.request.id, task.request.hostname, 0.0
    sending: Future[None] | None = None

    def send(line: str) -> None:
        with app.events.default_dispatcher(hostname=hostname) as dispatcher:
            dispatcher.send("task-progress", uuid=task_id, result=line)

    def report(line: str) -> None:
        nonlocal sent_at, sending
        if time.monotonic() - sent_at >= PROGRESS_SECONDS and (sending is None or sending.done()):
            sent_at = time.monotonic()
            sending = _dashboards.submit(send, line)  # fire and forget

    return report


def _in_one_line(result: JobResult) -> str:
    tokens = result.usage.input_tokens + result.usage.output_tokens
    line = (
        f"{result.state} · {len(result.files_modified)} files · {result.usage.model_calls} model calls"
        f" · {tokens} tokens · {result.execution_seconds:.1f} s"
    )
    return f"{line} · {result.error.type}" if result.error else line
