"""The Celery app of a worker; it is configured when it is first used, not when it is imported."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from functools import cached_property
from queue import Empty
from typing import Any

import structlog
from celery import Celery, signals
from celery.app.events import Events
from celery.apps.worker import Worker as CeleryWorker
from celery.apps.worker import install_worker_term_handler
from celery.events.dispatcher import EventDispatcher
from celery.platforms import EX_OK
from celery.worker.consumer import Consumer
from kombu.transport import TRANSPORT_ALIASES
from kombu.transport.redis import Channel, SentinelChannel, SentinelTransport, Transport
from kombu.transport.virtual import QoS

from fanout.orchestrator.jobs.failures import LedgerFull
from fanout.orchestrator.jobs.store.queue import LOADER, broker_settings
from fanout.orchestrator.jobs.store.redis_errors import redis_failure

from . import remote_control
from .bootstrap import worker
from .startup import load_worker_settings

log = structlog.get_logger(__name__)

ENDING_SIGNALS = ("SIGTERM", "SIGINT", "SIGQUIT")
EVENTS_SECONDS = 0.1
"""How long events for dashboards are gathered: sending one takes as long as sending many, and a
person does not see the difference."""


class GatheringDispatcher(EventDispatcher):  # type: ignore[misc] # Celery ships no types
    """Leaves it to the consumer when events of tasks are sent, however many they are.

    Celery's own sends them in the thread that has noted the last of 24.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options | {"buffer_limit": sys.maxsize})


class _Events(Events):  # type: ignore[misc] # Celery ships no types
    dispatcher_cls = GatheringDispatcher


class GatheringConsumer(Consumer):  # type: ignore[misc] # Celery ships no types
    """Sends the events of tasks together; Celery's own class sends one by one."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._is_sending_due = False
        self.app.consumer = self

    def show(self, task_id: str, kind: str, **fields: str) -> None:
        """Send an event of a task, with the next ones; may be called in any thread.

        Args:
            task_id: The task.
            kind: What happened: dashboards show it as the task's state.
            fields: What they show with it.
        """
        if (dispatcher := self.event_dispatcher) is not None:  # None: no connection
            dispatcher.send(f"task-{kind}", uuid=task_id, **fields)

    def on_send_event_buffered(self) -> None:
        """Send the events soon; Celery calls this in any thread, when it has noted one."""
        if self.hub and not self._is_sending_due:
            self._is_sending_due = True
            self.hub.call_soon(self.hub.call_later, EVENTS_SECONDS, self._send_events)

    def _send_events(self) -> None:
        self._is_sending_due = False
        self._flush_events()


class TolerantQoS(QoS):
    """Drops unacknowledged messages that cannot be put back; kombu's own class ends the worker."""

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Put them back if Redis is reachable; the ledger dispatches lost messages again."""
        try:
            super().restore_unacked_once(stderr)  # type: ignore[no-untyped-call] # kombu's types have gaps
        except Exception as error:  # noqa: BLE001 - half-closed connections fail in many ways
            log.warning("messages not requeued", error=type(error).__name__)


def _unless_full(ask: Callable[[], Any], otherwise: Any) -> Any:
    """Return the answer, or something else while Redis is full: a worker has to outlast that."""
    try:
        return ask()
    except Exception as error:
        failure = redis_failure(error)
        if not isinstance(failure, LedgerFull):
            raise
        log.warning("queue not declared", reason=str(failure))
        return otherwise


class TolerantChannel(Channel):
    """Drops malformed entries of a queue; with kombu's own class one of them ends the worker.

    It takes none while the worker is unfit.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)  # type: ignore[no-untyped-call] # as below
        self.QoS: Any = TolerantQoS

    def _queue_bind(self, *arguments: Any) -> None:
        """Bind a queue; while Redis is full its senders, who bind it too, do so later."""
        bind: Any = super()._queue_bind
        _unless_full(lambda: bind(*arguments), None)

    def _size(self, queue: str) -> Any:
        """Return a queue's length; while Redis is full it does not answer this in a transaction."""
        ask: Any = super()._size
        return _unless_full(lambda: ask(queue), 0)

    def _brpop_start(self, timeout: float | None = None) -> None:
        """Ask for the next message, unless this worker is unfit: others serve the same queue."""
        if worker().takes_jobs:
            super()._brpop_start(timeout)  # type: ignore[no-untyped-call] # kombu's types have gaps

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call] # kombu's types have gaps
        except (ValueError, TypeError, KeyError, AttributeError):
            log.exception("malformed entry of the queue dropped")
            raise Empty from None


class TolerantTransport(Transport):
    """A Redis transport with tolerant channels."""

    Channel = TolerantChannel


class TolerantSentinelChannel(TolerantChannel, SentinelChannel):
    """The same, to the primary that Sentinels name."""


class TolerantSentinelTransport(SentinelTransport):
    """A transport to the primary that Sentinels name, with tolerant channels."""

    Channel = TolerantSentinelChannel


class FanoutWorker(CeleryWorker):  # type: ignore[misc] # Celery ships no types
    """Ends on each signal that ends a worker as on SIGTERM: it gives its jobs back.

    On SIGQUIT and a second SIGINT, Celery's own class ends the tasks, and so jobs that are to go on
    elsewhere; on SIGHUP it waits for them for as long as they take, and starts the program again.
    """

    def install_platform_tweaks(self, worker: Any) -> None:
        """Set the signal handlers up, which Celery does last before it accepts tasks."""
        is_kept = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # by nohup
        super().install_platform_tweaks(worker)
        if is_kept:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for name in ENDING_SIGNALS if is_kept else (*ENDING_SIGNALS, "SIGHUP"):
            # With all arguments, as Celery's REMAP_SIGTERM in the environment sets others.
            install_worker_term_handler(worker, sig=name, how="Warm", callback=None, exitcode=EX_OK)


class FanoutCelery(Celery):  # type: ignore[misc] # Celery ships no types
    """Reads its options from the settings at first use."""

    events_cls = f"{__name__}:_Events"
    consumer: GatheringConsumer | None = None
    """What receives this worker's tasks, once it has started."""

    @cached_property
    def Worker(self) -> type[CeleryWorker]:  # noqa: N802 - Celery's name
        """The worker that `celery worker` and `fanout worker` start."""
        kind: type[CeleryWorker] = self.subclass_with_self(FanoutWorker)
        return kind

    def on_configure(self) -> None:
        """Configure the app; Celery calls this before it first reads its configuration."""
        TRANSPORT_ALIASES["redis"] = TRANSPORT_ALIASES["rediss"] = f"{__name__}:TolerantTransport"
        TRANSPORT_ALIASES["sentinel"] = f"{__name__}:TolerantSentinelTransport"
        self.config_from_object(celery_options())


def celery_options() -> dict[str, Any]:
    """Return the options that differ from Celery's defaults.

    Raises:
        SystemExit: The settings are not usable.
    """
    settings, redis_url = load_worker_settings()
    return {
        **broker_settings(redis_url, settings.redis_prefix),
        "broker_connection_retry_on_startup": True,  # a worker may start before its Redis
        "broker_connection_max_retries": None,  # and outlive it: retry without limit
        "imports": ("fanout.workers.tasks",),
        "task_default_queue": settings.worker.queue,
        "task_serializer": "json",
        "accept_content": ["json"],  # a pickle in the broker would be code
        "task_ignore_result": True,  # results live in the ledger
        "result_backend_thread_safe": True,  # it stores nothing: one for all threads, not one each
        "task_acks_late": False,  # the ledger is the authority: a lost message is dispatched again
        "worker_pool": "fanout.workers.pool:TaskPool",
        "worker_consumer": f"{__name__}:GatheringConsumer",
        "worker_concurrency": settings.worker.concurrency,
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": True,  # a waiting job can still be sent to another worker
        "worker_cancel_long_running_tasks_on_connection_loss": False,  # leases decide that
        "worker_send_task_events": True,  # Flower
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
    }


app = FanoutCelery("fanout", loader=LOADER, fixups=[])
"""Without Django's fixup, which puts the working directory in front of the path."""


def _log_as_configured(**_: Any) -> None:
    """Keep Celery from configuring logging; `workers.bootstrap` does it."""


def _open(**_: Any) -> None:
    try:
        worker().open()
    except Exception as error:
        # Celery only logs an exception of a handler, and would accept jobs that it cannot run.
        log.exception("worker not opened", error=type(error).__name__)
        raise SystemExit(1) from error


def _accept_jobs(sender: Any, **_: Any) -> None:
    """Begin, with the concurrency that Celery's worker was given.

    Args:
        sender: Its consumer.
    """
    worker().change_capacity(concurrency=remote_control.worker_capacity(sender))
    worker().accept_jobs()


def _release_jobs(sig: str, **_: Any) -> None:
    """Release the jobs, before Celery waits for its tasks, which end within a second.

    Args:
        sig: The name of the signal.
    """
    worker().release_jobs()
    if sig == "SIGQUIT":
        # At once: a draining worker that is asked only once would finish them.
        worker().release_jobs()


def _close(**_: Any) -> None:
    worker().close()
    if worker().exit_code:
        raise SystemExit(worker().exit_code)


def node_name() -> str:
    """Return this worker's name for Celery and Flower, unique among the workers of all hosts."""
    return f"fanout-{os.getpid()}@{socket.gethostname()}"


signals.setup_logging.connect(_log_as_configured, weak=False)
signals.worker_init.connect(_open, weak=False)
signals.worker_ready.connect(_accept_jobs, weak=False)
signals.worker_shutting_down.connect(_release_jobs, weak=False)
# It is sent by a signal handler, which a second signal interrupts: its plain lock would be waited
# for by the thread that holds it.
signals.worker_shutting_down.lock = threading.RLock()
signals.worker_shutdown.connect(_close, weak=False)
