"""Live output of a run in the job's journal: the newest lines of a tool, the model's text."""

from __future__ import annotations

import contextlib
import time

from google.adk.events import Event

from fanout.orchestrator.deep_agent import text_of
from fanout.orchestrator.jobs.failures import LedgerUnavailable
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.workers.agent.session_journal import LINE_CHARACTERS, AttemptJournal

LOG_SECONDS = 1.0
"""The time between two `log` events of a job: hundreds of jobs share one Redis, and a person reads
no faster."""

MAX_LOG_CHARACTERS = 400
"""The length of the text in a `log` event: a few lines. An hour of output adds at most 2 MB to a
journal."""


class LiveLog:
    """Appends the text of a run's partial events to the journal, at most once a second.

    Args:
        journal: The attempt's journal.
        agent: The name of the job's agent, the author of its events.
    """

    def __init__(self, journal: AttemptJournal, agent: str) -> None:
        self._journal = journal
        self._agent = agent
        self._noted_at = 0.0
        self._reply = ""
        """The end of the reply that is being streamed."""

    async def add(self, event: Event) -> None:
        """Append the text of a partial event, unless some was appended just before.

        Raises:
            LeaseLost: The attempt's lease is lost.
        """
        if not event.partial:
            self._reply = ""
            return
        text = text_of(event)
        is_reply = event.author == self._agent
        if is_reply:
            self._reply = text = (self._reply + text)[-MAX_LOG_CHARACTERS:]
        now = time.monotonic()
        if not text.strip() or now - self._noted_at < LOG_SECONDS:
            return
        self._noted_at = now
        newest = text.strip()[-MAX_LOG_CHARACTERS:]
        with contextlib.suppress(LedgerUnavailable):  # live output may be lost
            await self._journal.note(
                EventType.LOG,
                {"stream": "text" if is_reply else "output", "text": newest},
                newest.splitlines()[-1].strip()[-LINE_CHARACTERS:],
            )
