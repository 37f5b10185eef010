"""Sends jobs' ids to workers, through Celery.

A message contains an id and what a dashboard may show, nothing else; the ledger is the authority.
So a lost, duplicate or delayed message does no harm: a claim refuses a job that was not dispatched,
and a job whose message is lost is dispatched again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from ..redis_url import (
    canonical_url,
    celery_url,
    sentinel_address,
    tls_options,
)
from ..spec import JobSpec
from .connection import COMMAND_SECONDS
from .ledger import Dispatched
from .redis_errors import redis_failure
from .signatures import MessageSigner

if TYPE_CHECKING:
    from celery import Celery

LOADER = "fanout.orchestrator.path_loader:PathLoader"
"""The loader of Celery's settings, which is loaded when it is used: Celery's own puts the working
directory on the path."""

RUN_JOB = "fanout.run_job"
"""The name of the only task: constant, because dashboards make a series of every name."""

SENT_AT = "fanout_sent_at"
"""The header of a message that says when it was sent, in seconds since the epoch, for traces."""

SENDER = "clients@fanout"
"""The sender in events about sent messages, the same for all: Celery's own, a name for every
process, makes a series of metrics in Flower for each."""

LABEL_CHARACTERS = 200
"""The longest label of a job in a message: the column of a dashboard shows no more."""


def broker_settings(url: str, key_prefix: str) -> dict[str, Any]:
    """Return Celery's settings of Redis as a broker, the same for parents, workers and Flower.

    Args:
        url: The URL of Redis.
        key_prefix: The prefix of the installation's keys.
    """
    url = canonical_url(url)
    return {
        "broker_url": celery_url(url),
        "broker_use_ssl": tls_options(url) or False,
        "broker_transport_options": broker_options(key_prefix) | _sentinel_options(url),
    }


def _sentinel_options(url: str) -> dict[str, Any]:
    """Return the options of Celery's transport that its URLs of Sentinels cannot say."""
    address = sentinel_address(url)
    if address is None:
        return {}
    tls = tls_options(url)
    asked = {**({"ssl": True, **tls} if tls else {}), **address.sentinel_login}
    return {"master_name": address.primary, "sentinel_kwargs": asked or None}


def broker_options(key_prefix: str) -> dict[str, Any]:
    """Return the options of Celery's transport.

    Args:
        key_prefix: The prefix of the installation's keys.
    """
    return {
        "global_keyprefix": f"{key_prefix}:queue:",
        # The ledger dispatches a lost message again, so no copies are kept for that: they would
        # need rights and, when Redis is full, memory that a worker does not have.
        "ack_emulation": False,
        "socket_keepalive": True,
        "socket_connect_timeout": 5,
        "health_check_interval": 15,
    }


def shown_arguments(spec: JobSpec) -> tuple[str, str]:
    """Return the arguments that Flower shows of a job: its id; its agent and labels.

    They contain neither its description nor keys.
    """
    shown = {"agent": spec.agent, **spec.labels}
    return f"('{spec.id}',)", json.dumps(shown, ensure_ascii=False)[:LABEL_CHARACTERS]


def queue_of_pool(queue: str, pool: str) -> str:
    """Return the queue of a pool of workers.

    Args:
        queue: The installation's queue.
        pool: The pool; empty: that queue itself, which the workers of all pools serve.
    """
    return f"{queue}.{pool}" if pool else queue


def queue_of_worker(queue: str, name: str) -> str:
    """Return a worker's own queue: Celery's direct routing.

    Args:
        queue: The installation's queue.
        name: The worker's name in the ledger.
    """
    return f"{queue}@{name}"


class CeleryQueue:
    """Sends through Celery on Redis, by task name: the parent never imports the worker.

    Args:
        broker_url: The URL of Redis.
        key_prefix: The prefix of the installation's keys.
        queue: The name of the queue.
        signing_keys: The secrets with which workers check messages; see `MessageSigner`.
    """

    def __init__(
        self, broker_url: str, key_prefix: str, queue: str, signing_keys: Sequence[str] = ()
    ) -> None:
        self._signer = MessageSigner(signing_keys)
        self._settings = broker_settings(broker_url, key_prefix)
        # An answer that never comes, also to the beginning of TLS, would hold up the thread.
        self._settings["broker_transport_options"]["socket_timeout"] = COMMAND_SECONDS
        self._queue = queue
        # Celery blocks. In its own thread, no message waits for the loop's work on files.
        self._thread = ThreadPoolExecutor(1, "queue")

    @cached_property
    def _app(self) -> Celery:
        """Celery, which is loaded by the thread when the first job is sent."""
        from celery import Celery  # noqa: PLC0415 - see above

        app = Celery(
            "fanout",
            set_as_current=False,
            loader=LOADER,
            fixups=[],  # Django's puts the working directory in front of the path
        )
        app.conf.update(
            **self._settings,
            task_ignore_result=True,  # results live in the ledger
            task_send_sent_event=True,  # Flower lists jobs that no worker has received yet
            broker_connection_retry=False,
        )
        return app

    @cached_property
    def _events(self) -> Any:
        """The producer of events; not enabled: the producer of a message sends its event too."""
        return self._app.events.Dispatcher(enabled=False, hostname=SENDER)

    def _address(self, job: Dispatched) -> Any:
        """Return the queue of a job: its worker's own one, or that of the worker's pool.

        A worker's own one is not declared: nothing would take its binding away again.
        """
        from kombu.entity import Queue  # noqa: PLC0415 - as Celery

        if job.queue:
            return Queue(job.queue, routing_key=job.queue, no_declare=True)  # type: ignore[no-untyped-call] # kombu's types have gaps
        return queue_of_pool(self._queue, job.pool)

    async def send(self, jobs: Sequence[Dispatched]) -> None:
        """Send the jobs' ids.

        All are one pipeline, with their events: one by one, fifty take a quarter of a second.

        Raises:
            LedgerUnavailable: The broker does not respond; some ids may have been sent.
        """
        await asyncio.get_running_loop().run_in_executor(self._thread, self._send, jobs)

    def _send(self, jobs: Sequence[Dispatched]) -> None:
        from kombu.exceptions import KombuError  # noqa: PLC0415 - as Celery

        try:
            with self._app.producer_pool.acquire(block=True) as producer, producer.batch():
                for job in jobs:
                    shown_args, shown_labels = shown_arguments(job.spec)
                    message_id = f"{job.spec.id}.{job.number}"
                    self._app.send_task(
                        RUN_JOB,
                        args=[job.spec.id],
                        task_id=message_id,
                        headers={**self._signer.headers(message_id), SENT_AT: str(time.time())},
                        queue=self._address(job),
                        argsrepr=shown_args,
                        kwargsrepr=shown_labels,
                        producer=producer,
                        event_dispatcher=self._events,
                        retry=False,
                    )
        except (KombuError, RedisError, OSError) as error:
            raise redis_failure(error) from error

    async def close(self) -> None:
        """Close the broker's connections."""
        if "_app" in vars(self):
            await asyncio.get_running_loop().run_in_executor(self._thread, self._app.close)
        self._thread.shutdown(wait=False)  # it is idle
