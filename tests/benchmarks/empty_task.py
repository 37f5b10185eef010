"""The floor of the latency benchmark.

A Celery worker with our pool, whose one task says when it began.
"""

from __future__ import annotations

import time

import redis
from celery import Celery

from fanout.orchestrator.jobs.store.queue import broker_options

TASK = "bench.empty"
QUEUE = "bench"
STARTS = "bench:starts"
"""The Redis list that a task's start goes to."""

app = Celery("bench", set_as_current=False)
app.conf.update(
    broker_transport_options=broker_options("bench"),
    task_ignore_result=True,
    worker_pool="fanout.workers.pool:TaskPool",
    worker_concurrency=8,
    worker_prefetch_multiplier=1,
    worker_disable_prefetch=True,
    worker_hijack_root_logger=False,
)


@app.task(name=TASK)
def empty(redis_url: str) -> None:
    """Tell when this was reached."""
    began = time.time()
    with redis.Redis.from_url(redis_url) as client:
        client.rpush(STARTS, str(began))
