"""The Celery app: how messages reach this worker.

Configured when it is first used, not when imported.
"""

from __future__ import annotations

import os
import socket
from queue import Empty
from typing import Any

import structlog
from celery import Celery, signals
from kombu.transport import TRANSPORT_ALIASES
from kombu.transport.redis import Channel, QoS, Transport

from orchestrator.jobs.store.queue import broker_options, celery_url
from workers.bootstrap import load_worker_settings, worker

log = structlog.get_logger(__name__)


class SteadyQoS(QoS):
    """Lets unacknowledged messages go when they cannot be put back.

    As kombu has it, that ends the worker.
    """

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Put them back if Redis is there; the ledger dispatches again what does not arrive."""
        try:
            super().restore_unacked_once(stderr)  # type: ignore[no-untyped-call] # kombu's types have gaps
        except Exception as error:  # noqa: BLE001 - half closed connections fail in many ways
            log.warning("messages not put back", error=type(error).__name__)


class SteadyChannel(Channel):
    """Drops what is no message: as kombu has it, one such entry of a queue ends the worker."""

    QoS = SteadyQoS

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call] # kombu's types have gaps
        except (ValueError, TypeError, KeyError, AttributeError):
            log.exception("an entry of the queue is no message and was dropped")
            raise Empty from None


class SteadyTransport(Transport):
    """Redis with such channels."""

    Channel = SteadyChannel


class FanoutCelery(Celery):  # type: ignore[misc] # Celery ships no types
    """Reads its options from the settings at first use."""

    def on_configure(self) -> None:
        """Called by Celery before it looks at its configuration for the first time."""
        TRANSPORT_ALIASES["redis"] = TRANSPORT_ALIASES["rediss"] = f"{__name__}:SteadyTransport"
        self.config_from_object(celery_options())


def celery_options() -> dict[str, Any]:
    """Every option that is not Celery's default, with its reason."""
    settings, redis_url = load_worker_settings()
    return {
        "broker_url": celery_url(redis_url),
        "broker_transport_options": broker_options("fanout"),
        "broker_connection_retry_on_startup": True,  # a worker may start before its Redis
        "broker_connection_max_retries": None,  # and outlives it: for ever, not a hundred times
        "task_default_queue": settings.worker.queue,
        "task_serializer": "json",
        "accept_content": ["json"],  # a pickle in the broker would be code
        "task_ignore_result": True,  # results live in the ledger
        "task_acks_late": False,  # the ledger is the authority: a lost message is dispatched again
        "worker_pool": "workers.pool:TaskPool",
        "worker_concurrency": settings.worker.concurrency,
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": True,  # a job waits where it can still be given to another worker
        "worker_cancel_long_running_tasks_on_connection_loss": False,  # our leases decide that
        "worker_send_task_events": True,  # Flower
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
    }


app = FanoutCelery("fanout", include=["workers.tasks"])


def _log_as_configured(**_: Any) -> None:
    """Keeps Celery's hands off logging; `workers.bootstrap` sets it up."""


def _open(**_: Any) -> None:
    try:
        worker().open()
    except Exception as error:
        # Celery only logs what a handler raises, and would take jobs that it cannot run.
        log.exception("worker not opened", error=type(error).__name__)
        raise SystemExit(1) from error


def _take_jobs(**_: Any) -> None:
    worker().take_jobs()


def _give_jobs_back(**_: Any) -> None:
    """On SIGTERM, before Celery waits for its tasks.

    Ours end within a second, so it waits no longer.

    Mapping TERM to QUIT (REMAP_SIGTERM) would not help: Celery then sleeps first and tells us
    afterwards.
    """
    worker().give_jobs_back()


def _close(**_: Any) -> None:
    worker().close()


def node_name() -> str:
    """A worker's name among others on its host, for Celery and Flower."""
    return f"fanout-{os.getpid()}@{socket.gethostname()}"


signals.setup_logging.connect(_log_as_configured, weak=False)
signals.worker_init.connect(_open, weak=False)
signals.worker_ready.connect(_take_jobs, weak=False)
signals.worker_shutting_down.connect(_give_jobs_back, weak=False)
signals.worker_shutdown.connect(_close, weak=False)
