"""The messages of jobs that have parked on this worker: dashboards show them as waiting.

A job that waits is on no worker. When it is cancelled, the worker that ran it last says so to
dashboards, which know jobs by their messages.
"""

from __future__ import annotations

from collections.abc import Callable

MAX_REMEMBERED = 10_000
"""Messages of jobs that may still wait; each takes some 200 bytes."""


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
