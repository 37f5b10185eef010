"""Listens for cancellations of running jobs, which the ledger publishes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from fanout.orchestrator.jobs.failures import JobCancelled
from fanout.orchestrator.jobs.store.ledger import Ledger
from fanout.workers.heartbeat import Heartbeats

log = structlog.get_logger(__name__)

SUBSCRIBE_AGAIN_SECONDS = 0.2
"""The pause before subscribing again after a lost connection; it delays cancellations."""


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
