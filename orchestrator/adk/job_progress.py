"""What a person sees of the jobs below a job: one line for each, with its label and state.

While they run, each change of a job's state is a line; when a wave of them has ended, they are
listed once more, and that list stays in the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from math import inf

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.approvals import Approval
from fanout.orchestrator.jobs.failures import LedgerUnavailable
from fanout.orchestrator.jobs.state import JobRecord, JobState
from fanout.orchestrator.jobs.store.journal import JournalEvent
from fanout.orchestrator.shortening import one_line

LOOK_SECONDS = 1.0
"""Between two looks at the jobs below: a person does not notice a delay of this length."""
TITLE_CHARACTERS = 45
"""Of a job's labels and description: with agent and state one line of a chat in a browser."""
REASON_CHARACTERS = 200
"""Of what made a job fail: two such lines."""

_MARKS = {
    JobState.QUEUED: "○",
    JobState.RUNNING: "●",
    JobState.WAITING: "◐",
    JobState.SUCCEEDED: "✓",
}
_FAILED = "✗"


class JobProgress:
    """Follows one job and looks at those below it."""

    def __init__(self, client: JobClient, job_id: str, after: str) -> None:
        """Begin to follow.

        Args:
            client: Reads the ledger.
            job_id: The job.
            after: The entry of its journal up to which somebody has followed it.
        """
        self._client = client
        self._job_id = job_id
        self._after = after
        self._known_until = int(after.partition("-")[0]) / 1000
        self._shown: dict[str, tuple[JobState, str | None]] = {}
        self._records: dict[str, JobRecord] = {}
        self._listed: set[str] = set()

    async def entries(self) -> AsyncGenerator[JournalEvent | None]:
        """Yield the entries of the job's journal, and None whenever it is time to look."""
        events = self._client.events(self._job_id, self._after)
        coming: asyncio.Future[JournalEvent] | None = None
        looked = 0.0
        loop = asyncio.get_running_loop()
        try:
            while True:
                coming = coming or asyncio.ensure_future(_next(events))
                await asyncio.wait({coming}, timeout=LOOK_SECONDS)
                if loop.time() - looked >= LOOK_SECONDS:
                    looked = loop.time()
                    yield None
                if coming.done():
                    try:
                        entry = coming.result()
                    except StopAsyncIteration:
                        return
                    finally:
                        coming = None
                    yield entry
        finally:
            if coming is not None:
                coming.cancel()
                await asyncio.wait({coming})
            await events.aclose()

    async def changed(self) -> list[tuple[str, str]]:
        """Return the jobs whose state has changed since the last call: each one's id and line."""
        lines = []
        for record in await self._look():
            now = (record.state, _awaited(record))
            if self._shown.get(record.id) != now and record.id not in self._listed:
                self._shown[record.id] = now
                lines.append((record.id, _line(record)))
        return lines

    async def _look(self) -> list[JobRecord]:
        """Read the jobs below; what ended before this follower began was listed by another one."""
        try:
            records = await self._client.tree(self._job_id)
        except LedgerUnavailable:  # the journal's reader says so, if it lasts
            return []
        below = [record for record in records if record.id != self._job_id]
        for record in below:
            if record.id not in self._records and (record.finished_at or inf) < self._known_until:
                self._listed.add(record.id)
            self._records[record.id] = record
        return below

    def ended(self, *, all_of_them: bool = False) -> str:
        """Return the jobs that have ended and are not listed yet, when none below runs any more.

        Args:
            all_of_them: List also those that still run: nobody follows them further for now.
        """
        live = [record for record in self._records.values() if not record.state.is_terminal]
        if live and not all_of_them:
            return ""
        new = [record for record in self._records.values() if record.id not in self._listed]
        self._listed.update(record.id for record in new if record.state.is_terminal)
        return "\n".join(_line(record) + _reason(record) for record in new)

    async def approvals(self) -> list[Approval]:
        """Return the calls of the jobs below that wait for a person, oldest first."""
        try:
            waiting = await self._client.approvals()
        except LedgerUnavailable:
            return []
        if waiting:
            await self._look()  # what is said of their jobs is not older than the question
        return [one for one in waiting if one.job_id in self._records]


async def _next(events: AsyncIterator[JournalEvent]) -> JournalEvent:
    return await anext(events)


def _line(record: JobRecord) -> str:
    """Return a job's line; a list of Markdown, so that each is a line of its own in a browser."""
    labels = " ".join(f"[{key}={value}]" for key, value in record.labels.items())
    what = one_line(f"{labels} {record.description}", TITLE_CHARACTERS)
    awaited = _awaited(record)
    state = f"{record.state}: {awaited}" if awaited else str(record.state)
    return f"- {_MARKS.get(record.state, _FAILED)} **{record.agent}** {what} · {state}"


def _reason(record: JobRecord) -> str:
    return f" — {one_line(record.reason, REASON_CHARACTERS)}" if record.reason else ""


def _awaited(record: JobRecord) -> str | None:
    """Return what a waiting job waits for; a queued one's reasons change all the time."""
    return record.waiting_for if record.state is JobState.WAITING else None
