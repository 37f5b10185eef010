"""What happens to a job, as updates of its task, until it ends or asks for something new."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from a2a.types import (
    Message,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

from fanout.orchestrator.cancellation import cancel_and_wait
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from fanout.orchestrator.server.a2a.shown.approval_requests import LONG_RUNNING, waiting_below
from fanout.orchestrator.server.a2a.shown.conversation import message_of
from fanout.orchestrator.server.a2a.shown.parts import time_of
from fanout.orchestrator.server.a2a.shown.records import STATES, context_of
from fanout.orchestrator.server.a2a.shown.task_view import Snapshot, TaskView
from fanout.orchestrator.server.changed_jobs import ChangedJobs

Update = TaskStatusUpdateEvent | TaskArtifactUpdateEvent

WAITING_ENTRIES = 100
"""Entries that wait for a slow client; then the journal is not read on."""
CREDENTIAL_REQUEST = "adk_request_credential"
"""The call by which ADK's tools ask for the user's authorization."""


def state_after(step: Message) -> TaskState:
    """Return the state of a task whose agent did this step."""
    asks = any(
        LONG_RUNNING in part.metadata
        and part.data.struct_value.fields["name"].string_value == CREDENTIAL_REQUEST
        for part in step.parts
    )
    return TaskState.TASK_STATE_AUTH_REQUIRED if asks else TaskState.TASK_STATE_WORKING


class TaskUpdates:
    """Follows one task.

    Args:
        view: Shows the caller's jobs.
        changed: Which jobs change: the decisions of sub-agents are in no journal of the task's job.
        start: The task as the client knows it.
    """

    def __init__(self, view: TaskView, changed: ChangedJobs, start: Snapshot) -> None:
        self._view = view
        self._changed = changed
        self._record = start.record
        self._after = start.after
        self._asked = start.waiting
        self._elsewhere: set[str] = set()

    async def follow(self) -> AsyncGenerator[Update]:
        """Yield updates until the job has ended, or waits for decisions not yet asked for.

        Raises:
            UnknownJob: The journal does not exist any more.
            LedgerUnavailable: Redis was unavailable for longer than its outages are waited for.
        """
        async with self._signals() as signals:
            while True:
                entry = await signals.get()
                if isinstance(entry, Exception):
                    raise entry
                if entry is not None and entry.ends_job:
                    async for update in self._end():
                        yield update
                    return
                for update in [] if entry is None else await self._told(entry):
                    yield update
                if entry is None or entry.type is EventType.JOB_STATE:
                    question = await self._question()
                    if question is not None:
                        yield question
                        if question.status.state == TaskState.TASK_STATE_INPUT_REQUIRED:
                            return

    @asynccontextmanager
    async def _signals(self) -> AsyncIterator[asyncio.Queue[JournalEvent | Exception | None]]:
        """Gather the entries of the journal, and None whenever a job of the tree has changed."""
        queue: asyncio.Queue[JournalEvent | Exception | None] = asyncio.Queue(WAITING_ENTRIES)
        tasks = [
            asyncio.create_task(self._read_journal(queue)),
            asyncio.create_task(self._watch_tree(queue)),
        ]
        try:
            yield queue
        finally:
            for task in tasks:
                await cancel_and_wait(task)

    async def _read_journal(self, queue: asyncio.Queue[JournalEvent | Exception | None]) -> None:
        try:
            async for entry in self._view.jobs.events(self._record.id, self._after):
                await queue.put(entry)
        except Exception as failure:  # noqa: BLE001 - it is raised where the queue is read
            await queue.put(failure)

    async def _watch_tree(self, queue: asyncio.Queue[JournalEvent | Exception | None]) -> None:
        try:
            async for ids in self._changed.batches():
                if not ids or await self._is_of_tree(ids):
                    await queue.put(None)
        except Exception as failure:  # noqa: BLE001 - it is raised where the queue is read
            await queue.put(failure)

    async def _is_of_tree(self, ids: frozenset[str]) -> bool:
        """Return whether one of these jobs is below the task's; each foreign one is read once."""
        records = await self._view.jobs.owned_records(ids - self._elsewhere)
        mine = {one.id for one in records if one.root_id == self._record.root_id}
        self._elsewhere |= ids - mine
        return bool(mine)

    async def _question(self) -> TaskStatusUpdateEvent | None:
        """Return the status when other decisions are awaited than those that the client knows."""
        record = await self._view.jobs.get(self._record.id)
        if record.state.is_terminal:
            return None  # the journal tells
        waiting = await waiting_below(self._view.jobs, record)
        ids = frozenset(one.approval.id for one in waiting)
        if ids == self._asked:
            return None
        known, self._asked = self._asked, ids
        if ids and ids < known:
            return None  # some of them were answered: the others are still asked for
        return self._status(self._view.status(record, waiting))

    async def _told(self, entry: JournalEvent) -> list[TaskStatusUpdateEvent]:
        """Return what an entry tells the client."""
        if entry.type is EventType.JOB_STATE:
            state = STATES[JobState(str(entry.data["state"]))]
            return [self._status(TaskStatus(state=state, timestamp=time_of(entry.at)), entry)]
        message = await message_of(self._view.jobs, self._record, entry)
        if message is None:
            return []
        state = state_after(message)
        status = TaskStatus(state=state, message=message, timestamp=time_of(entry.at))
        return [self._status(status, entry)]

    async def _end(self) -> AsyncIterator[Update]:
        snapshot = await self._view.snapshot(self._record.id, 0)
        for artifact in snapshot.task.artifacts:
            yield TaskArtifactUpdateEvent(
                task_id=snapshot.task.id,
                context_id=snapshot.task.context_id,
                artifact=artifact,
                last_chunk=True,
            )
        yield self._status(snapshot.task.status)

    def _status(
        self, status: TaskStatus, entry: JournalEvent | None = None
    ) -> TaskStatusUpdateEvent:
        update = TaskStatusUpdateEvent(
            task_id=self._record.id, context_id=context_of(self._record), status=status
        )
        if entry is not None:
            update.metadata.update({"fanout.event_id": entry.id, "fanout.attempt": entry.attempt})
        return update
