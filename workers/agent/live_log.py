"""What a run shows while it goes on, told in the job's journal.

A tool's newest lines, the model's words.
"""

from __future__ import annotations

import contextlib
import time

from google.adk.events import Event

from orchestrator.deep_agent import text_of
from orchestrator.jobs.failures import LedgerUnavailable
from orchestrator.jobs.store.journal import EventType
from workers.agent.session_journal import LINE_CHARACTERS, AttemptJournal

LOG_SECONDS = 1.0
"""Between two `log` events of a job: hundreds of jobs share one Redis, and a person reads no
faster."""

MAX_LOG_CHARACTERS = 400
"""Of the newest text in a `log` event: a few lines. An hour of output adds 2 MB to a journal at the
most."""


class LiveLog:
    """Takes a run's events; the partial ones go to the journal, now and then."""

    def __init__(self, journal: AttemptJournal, agent: str) -> None:
        self._journal = journal
        self._agent = agent
        self._noted_at = 0.0
        self._said = ""

    async def take(self, event: Event) -> None:
        """Note what a partial event shows, unless something was noted just now.

        Raises:
            LeaseLost: the attempt may no longer act.
        """
        if not event.partial:
            self._said = ""
            return
        text = text_of(event)
        is_said = event.author == self._agent
        if is_said:
            self._said = text = (self._said + text)[-MAX_LOG_CHARACTERS:]
        now = time.monotonic()
        if not text.strip() or now - self._noted_at < LOG_SECONDS:
            return
        self._noted_at = now
        newest = text.strip()[-MAX_LOG_CHARACTERS:]
        with contextlib.suppress(LedgerUnavailable):  # nothing that counts is lost
            await self._journal.note(
                EventType.LOG,
                {"stream": "text" if is_said else "output", "text": newest},
                newest.splitlines()[-1].strip()[-LINE_CHARACTERS:],
            )
