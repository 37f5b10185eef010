"""Cancellations of jobs: running ones are stopped, and dashboards see those of parked ones.

The ledger publishes them. A job that waits is on no worker. When it is cancelled, the worker that
ran it last reports it to dashboards, which know jobs by their messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from fanout.orchestrator.jobs.failures import JobCancelled
from fanout.orchestrator.jobs.store.ledger import Ledger

from ..heartbeat import Heartbeats

MAX_REMEMBERED = 10_000
"""Messages of jobs that may still wait; each takes some 200 bytes."""
log = structlog.get_logger(__name__)

SUBSCRIBE_AGAIN_SECONDS = 0.2
"""The pause before subscribing again after a lost connection; it delays cancellations."""


class ParkedMessages:
    """The newest message of each job that has parked here; the oldest ones are forgotten."""

    def __init__(self) -> None:
        self._messages: dict[str, str] = {}
        self.show_cancelled: Callable[[str], None] = lambda _: None
        """Shows a message as cancelled; may be called in any thread."""

    def add(self, job_id: str, message_id: str) -> None:
        """Remember the message of a job that has just parked."""
        self._messages.pop(job_id, None)
        self._messages[job_id] = message_id
        if len(self._messages) > MAX_REMEMBERED:
            self._messages.pop(next(iter(self._messages)), None)

    def cancelled(self, job_id: str) -> None:
        """Show that a job was cancelled, if it has parked here."""
        message_id = self._messages.pop(job_id, None)
        if message_id is not None:
            self.show_cancelled(message_id)


class Cancellations:
    """Stops cancelled jobs at once; if a message is lost, the next heartbeat stops the job.

    Args:
        ledger: Publishes them, on connections that the jobs do not use.
        heartbeats: Knows the running jobs.
        on_cancelled: Are called with the id of each cancelled job.
    """

    def __init__(
        self, ledger: Ledger, heartbeats: Heartbeats, on_cancelled: Sequence[Callable[[str], None]]
    ) -> None:
        self._ledger = ledger
        self._heartbeats = heartbeats
        self._on_cancelled = on_cancelled

    async def run(self) -> None:
        """Listen until cancelled."""
        while True:
            try:
                async for job_id in self._ledger.cancellations():
                    if job_id is None:
                        self._heartbeats.renew_now()  # reads cancels that were missed meanwhile
                    else:
                        self._heartbeats.stop(job_id, JobCancelled("Cancelled."))
                        for listener in self._on_cancelled:
                            listener(job_id)
                    await asyncio.sleep(0)  # those that came together would be one long step
            except Exception as error:  # noqa: BLE001 - subscribe again after any failure
                log.warning("subscription to cancellations lost", error=type(error).__name__)
                await asyncio.sleep(SUBSCRIBE_AGAIN_SECONDS)
