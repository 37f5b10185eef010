"""Celery's commands to workers (`celery control …`, Flower's buttons) as fanout obeys them.

They arrive at every worker on one channel, which is not signed: FANOUT_WORKER__REMOTE_CONTROL
refuses those that change something. A reply says what happens; commands that would not do what they
say are refused with the name of what does.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

from celery.worker import state as celery_state
from celery.worker.control import Panel, control_command

from fanout.orchestrator.jobs.failures import LedgerUnavailable, UnknownJob
from fanout.orchestrator.jobs.state import JobState

from .bootstrap import worker

UNUSED = (
    *("pool_restart", "election", "revoke_by_stamped_headers"),
    *("objgraph", "memsample", "memdump"),
)
"""Celery's commands that mean nothing here."""
for _name in UNUSED:
    Panel.data.pop(_name, None)
    Panel.meta.pop(_name, None)

NOT_OBEYED = "This worker obeys no commands that change it: FANOUT_WORKER__REMOTE_CONTROL is false."
NO_AUTOSCALE = (
    "This worker has a fixed concurrency: use pool_grow and pool_shrink, or start it with "
    "--autoscale MAX,MIN."
)
AUTOSCALED = "This worker sets its concurrency itself (--autoscale): use the command autoscale."
NO_TIME_LIMIT = (
    "Time limits are not those of a Celery task but of each job: limits.timeout_seconds, "
    "`--timeout`, or FANOUT_LIMITS__TIMEOUT_SECONDS for jobs that name none."
)
NO_RATE_LIMIT = (
    "All jobs are one Celery task, and held messages would be sent again: limit a model's requests "
    "with FANOUT_MODELS, concurrent jobs with FANOUT_LIMITS__TREE_JOBS, FANOUT_LIMITS__TENANT_JOBS "
    "or an agent's max_running."
)
OUTCOMES = {
    None: "{job}: there is no such job",
    JobState.QUEUED: "{job}: cancelled",
    JobState.WAITING: "{job}: cancelled",
    JobState.RUNNING: "{job}: it runs on another worker, or terminate was not given",
}
"""The outcomes by the state that a job had before it was revoked."""


def _command(**description: Any) -> Callable[[Callable[..., str]], Callable[..., str]]:
    """Register a command in place of Celery's of the same name.

    Its text is the reply; a ValueError's text is the reply of a refusal.
    """

    def register(obey: Callable[..., str]) -> Callable[..., str]:
        @functools.wraps(obey)
        def reply(state: Any, **arguments: Any) -> dict[str, str]:
            if not worker().obeys_commands:
                return {"error": NOT_OBEYED}
            try:
                return {"ok": obey(state, **arguments)}
            except (ValueError, LedgerUnavailable) as error:
                return {"error": str(error)}

        control_command(name=obey.__name__, **description)(reply)
        return obey

    return register


def worker_capacity(consumer: Any) -> int:
    """Return how many jobs a worker takes at once.

    Args:
        consumer: Celery's, of the worker.
    """
    return int(consumer.controller.max_concurrency or consumer.pool.num_processes)


@_command(args=[("n", int)], signature="[N=1]")
def pool_grow(state: Any, n: int = 1, **_: Any) -> str:
    """Run N more jobs at once."""
    return _resize(state.consumer, n)


@_command(args=[("n", int)], signature="[N=1]")
def pool_shrink(state: Any, n: int = 1, **_: Any) -> str:
    """Run N fewer jobs at once; running jobs go on."""
    return _resize(state.consumer, -n)


def _resize(consumer: Any, change: int) -> str:
    if consumer.controller.autoscaler:
        raise ValueError(AUTOSCALED)
    consumer.pool.grow(change)
    consumer._update_prefetch_count(change)  # noqa: SLF001 - as Celery's own commands do
    worker().change_capacity(concurrency=worker_capacity(consumer))
    return f"at most {consumer.pool.num_processes} jobs at once"


@_command(args=[("max", int), ("min", int)], signature="[max [min]]")
def autoscale(state: Any, max: int | None = None, min: int | None = None, **_: Any) -> str:  # noqa: A002 - Celery's names
    """Change the bounds of the concurrency of workers that were started with --autoscale."""
    controller = state.consumer.controller
    if not controller.autoscaler:
        raise ValueError(NO_AUTOSCALE)
    most = controller.autoscaler.max_concurrency if max is None else max
    least = controller.autoscaler.min_concurrency if min is None else min
    if not 1 <= least <= most:
        raise ValueError(f"Autoscale needs 1 <= min <= max, not min={least} and max={most}.")
    controller.autoscaler.update(most, least)
    controller.max_concurrency = most
    worker().change_capacity(concurrency=most)
    return f"autoscale now max={most} min={least}"


@_command(args=[("task_name", str), ("soft", float), ("hard", float)], signature="(not supported)")
def time_limit(*_: Any, **__: Any) -> str:
    """Is refused: each job has its own time limit."""
    raise ValueError(NO_TIME_LIMIT)


@_command(args=[("task_name", str), ("rate_limit", str)], signature="(not supported)")
def rate_limit(*_: Any, **__: Any) -> str:
    """Is refused: models and concurrent jobs have limits of their own."""
    raise ValueError(NO_RATE_LIMIT)


@_command()
def shutdown(*_: Any, **__: Any) -> str:
    """Stop the worker as SIGTERM does: its jobs are handed over, or finished with --drain."""
    farewell = worker().farewell  # before its jobs are released
    os.kill(os.getpid(), signal.SIGTERM)
    return farewell


@_command(args=[("queue", str)], signature="<queue>")
def cancel_consumer(state: Any, queue: str, **_: Any) -> str:
    """Take no more jobs from a queue; running jobs go on."""
    consumer = state.consumer
    served = set(consumer.app.amqp.queues.consume_from) - {worker().queue}
    if queue not in served:
        raise ValueError(f"This worker does not take jobs from {queue}.")
    consumer.call_soon(consumer.cancel_task_queue, queue)
    if served != {queue}:
        return f"takes no more jobs from {queue}"
    worker().change_capacity(paused=True)
    return f"takes no more jobs; other workers get them. To resume: add_consumer {queue}"


@_command(
    args=[("queue", str), ("exchange", str), ("exchange_type", str), ("routing_key", str)],
    signature="<queue>",
)
def add_consumer(state: Any, queue: str, **_: Any) -> str:
    """Take jobs from a queue."""
    state.consumer.call_soon(state.consumer.add_task_queue, queue)
    worker().change_capacity(paused=False)
    return f"takes jobs from {queue}"


@_command(variadic="task_id", signature="[job1 [job2 …]]")
def revoke(_: Any, task_id: str | Sequence[str], terminate: bool = False, **__: Any) -> str:
    """Cancel jobs that wait; with terminate also those that run here."""
    ids = [task_id] if isinstance(task_id, str) else list(task_id)
    return "; ".join(_revoke(one, terminate=terminate) for one in ids)


@_command(variadic="task_id", args=[("signal", str)], signature="<signal> [job1 [job2 …]]")
def terminate(_: Any, task_id: str | Sequence[str], **__: Any) -> str:
    """Cancel jobs, whether they wait or run here."""
    return revoke(None, task_id, terminate=True)


def _revoke(message_id: str, *, terminate: bool) -> str:
    """Cancel one job, as `fanout cancel` does, and return what became of it.

    Args:
        message_id: The id of the job, or of one of its messages, as Flower shows it.
        terminate: Whether to cancel it if it runs here, too.
    """
    job_id = message_id.partition(".")[0]
    is_here = any(
        request.id.partition(".")[0] == job_id for request in list(celery_state.active_requests)
    )
    before = worker().agents.run(_cancel(job_id, also_running=is_here and terminate))
    if before is JobState.RUNNING and is_here and terminate:
        return f"{job_id}: terminated"
    return OUTCOMES.get(before, f"{{job}}: it has ended ({before})").format(job=job_id)


async def _cancel(job_id: str, *, also_running: bool) -> JobState | None:
    """Cancel a job that waits; return its state before, None if it does not exist.

    Args:
        job_id: The job.
        also_running: Whether to cancel it if a worker runs it, too.
    """
    try:
        state = (await worker().ledger.get(job_id)).state
        if also_running or state in {JobState.QUEUED, JobState.WAITING}:
            return await worker().ledger.cancel(job_id)
    except UnknownJob:
        return None
    return state
