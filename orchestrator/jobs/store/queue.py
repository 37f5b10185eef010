"""The way of a job's id to a worker. The only module of the parent's side that knows Celery.

A message holds an id and what a dashboard may show, nothing else; the ledger is the authority.
Losing, doubling or delaying a message is therefore harmless: a claim refuses what is not due, and
what does not arrive is dispatched again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from celery import Celery
from kombu.exceptions import OperationalError

from orchestrator.jobs.failures import LedgerUnavailable
from orchestrator.jobs.spec import JobSpec
from orchestrator.jobs.store.ledger import Dispatched

RUN_JOB = "fanout.run_job"
"""The one task's name: constant, because dashboards make a series of every name."""

LABEL_CHARACTERS = 200
"""Of a job's labels in a message: a dashboard shows no more in its column."""


class JobQueue(Protocol):
    """Sends jobs to workers."""

    async def send(self, jobs: Sequence[Dispatched]) -> None:
        """Send the jobs' ids.

        Raises:
            LedgerUnavailable: the broker does not answer; some may have been sent all the same.
        """
        ...

    async def close(self) -> None:
        """Let the connection go."""
        ...


def broker_options(key_prefix: str) -> dict[str, Any]:
    """What parents and workers must agree on about Redis as a broker."""
    return {
        "global_keyprefix": f"{key_prefix}:queue:",
        # Messages are acknowledged early, so these two only matter for control messages' replies.
        "visibility_timeout": 3600,
        "unacked_restore_interval": 60,
        "socket_keepalive": True,
        "socket_connect_timeout": 5,
        "health_check_interval": 15,
    }


def shown_arguments(spec: JobSpec) -> tuple[str, str]:
    """What Flower shows of a job: its id, agent and labels; never its description or keys."""
    shown = {"agent": spec.agent, **spec.labels}
    return f"('{spec.id}',)", json.dumps(shown, ensure_ascii=False)[:LABEL_CHARACTERS]


class CeleryQueue:
    """Sends through Celery on Redis, by task name: the parent never imports the worker."""

    def __init__(self, broker_url: str, key_prefix: str, queue: str) -> None:
        self._app = Celery("fanout", broker=celery_url(broker_url), set_as_current=False)
        self._app.conf.update(
            broker_transport_options=broker_options(key_prefix),
            task_ignore_result=True,  # results live in the ledger
            task_send_sent_event=True,  # Flower lists jobs that no worker has taken yet
            broker_connection_retry=False,
        )
        self._queue = queue
        # Celery blocks. With a thread of its own no message waits behind the loop's work on files.
        self._thread = ThreadPoolExecutor(1, "queue")

    async def send(self, jobs: Sequence[Dispatched]) -> None:
        """Send the jobs' ids."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._send, jobs)

    def _send(self, jobs: Sequence[Dispatched]) -> None:
        try:
            with self._app.producer_pool.acquire(block=True) as producer:
                for job in jobs:
                    shown_args, shown_labels = shown_arguments(job.spec)
                    self._app.send_task(
                        RUN_JOB,
                        args=[job.spec.id],
                        task_id=f"{job.spec.id}.{job.number}",
                        queue=self._queue,
                        argsrepr=shown_args,
                        kwargsrepr=shown_labels,
                        producer=producer,
                        retry=False,
                    )
        except (OperationalError, OSError) as error:
            raise LedgerUnavailable(
                f"The broker does not answer ({type(error).__name__}): check Redis and FANOUT_REDIS_URL.",
            ) from error

    async def close(self) -> None:
        """Close the broker's connections."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._app.close)
        self._thread.shutdown(wait=False)  # it has nothing left to do


class InMemoryQueue:
    """A queue inside one process, through the same wire format, that can fail on demand.

    `fail_before` and `fail_after` count sends that raise without, and with, having delivered.
    """

    def __init__(self, deliver: Callable[[str], Awaitable[None]]) -> None:
        self._deliver = deliver
        self.fail_before = 0
        self.fail_after = 0
        self.sent: list[str] = []
        """The messages as they would stand on the wire."""

    async def send(self, jobs: Sequence[Dispatched]) -> None:
        """Deliver each id; the receiver gets what the wire format left of it."""
        for job in jobs:
            if self.fail_before > 0:
                self.fail_before -= 1
                raise LedgerUnavailable("The broker does not answer (before).")
            message = json.dumps([[job.spec.id], {}, {}])
            self.sent.append(message)
            await self._deliver(json.loads(message)[0][0])
            if self.fail_after > 0:
                self.fail_after -= 1
                raise LedgerUnavailable("The broker does not answer (after).")

    async def close(self) -> None:
        """Nothing is held."""


def celery_url(url: str) -> str:
    """The same Redis in Celery's spelling: it calls a socket `redis+socket://`."""
    return url.replace("unix://", "redis+socket://", 1) if url.startswith("unix://") else url
