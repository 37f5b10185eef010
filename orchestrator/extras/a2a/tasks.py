"""Jobs as tasks: single ones with their artifacts, pages of them, and updates.

Nothing here is kept: ids are derived from those of jobs and journal entries, so a client that reads
again, from whichever server, gets the same.
"""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from a2a.types import (
    Artifact,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import validate_page_size

from ...cancellation import cancel_and_wait
from ...client.job_pages import JobFilter
from ...jobs.budget import BudgetState
from ...jobs.changes import ChangeBundle, MalformedBundle, PatchFailed
from ...jobs.failure_texts import what_happened
from ...jobs.failures import BlobMissing
from ...jobs.result import JobResult
from ...jobs.state import LIVE_STATES, JobRecord, JobState
from ...jobs.store.journal import EventType, JournalEvent
from ...jobs.store.model_states import ClosedModel
from ...server.event_feed import ChangedJobs
from ...server.owned_jobs import OwnedJobs
from ...server.pages import make_cursor, read_cursor
from ...server.problems import Problem
from .approval_requests import (
    LONG_RUNNING,
    AwaitedCall,
    asking,
    waiting_below,
    waiting_calls,
)
from .conversation import convert_entry, history
from .protocol import (
    CONTEXT_LABEL,
    STATES,
    data_part,
    file_part,
    job_context,
    link_part,
    state_changed_time,
    to_timestamp,
)

PATCH_TYPE = "text/x-diff"
BINARY_TYPE = "application/octet-stream"
MAX_PATCH_BYTES = 512 * 1024
"""The largest patch inside a task; of a larger one the task has the address."""
MAX_FILES_BYTES = 512 * 1024
"""The most bytes of changed files' contents inside a task; all of them are in the patch."""
DEFAULT_PAGE_SIZE = 50
MAX_COUNTED = 5_000
"""The most tasks that are counted for one answer: as many records as for a page of jobs."""
NANOSECONDS = 1_000_000_000
SHOWN_MODELS = 3
"""The most models that a task names for which it waits."""

JOB_STATES: Mapping[int, frozenset[JobState]] = {
    TaskState.TASK_STATE_SUBMITTED: frozenset({JobState.QUEUED}),
    TaskState.TASK_STATE_WORKING: frozenset({JobState.RUNNING, JobState.WAITING}),
    TaskState.TASK_STATE_INPUT_REQUIRED: LIVE_STATES,
    TaskState.TASK_STATE_COMPLETED: frozenset({JobState.SUCCEEDED}),
    TaskState.TASK_STATE_FAILED: frozenset({JobState.FAILED, JobState.TIMED_OUT}),
    TaskState.TASK_STATE_CANCELED: frozenset({JobState.CANCELLED}),
}
"""The possible states of the job of a task in each state; there are no tasks in other states."""
Update = TaskStatusUpdateEvent | TaskArtifactUpdateEvent

WAITING_ENTRIES = 100
"""The entries that wait for a slow client; then reading the journal pauses."""
CREDENTIAL_REQUEST = "adk_request_credential"
"""The call with which ADK's tools ask for the user's authorization."""


async def make_artifacts(jobs: OwnedJobs, result: JobResult, base_url: str) -> list[Artifact]:
    """Return the artifacts of a job that has ended, always with the same ids.

    Args:
        jobs: The caller's jobs.
        result: The job's result.
        base_url: The origin of the service, for contents that are too large for a task.
    """
    found = []
    if result.summary:
        found.append(_artifact("answer", "The agent's answer.", Part(text=result.summary)))
    if result.output is not None:
        part = data_part(result.output)
        found.append(_artifact("output", "The answer as the job's schema has it.", part))
    if result.changes is not None:
        found += await _changes(jobs, result, base_url)
    return found


def _artifact(name: str, description: str, *parts: Part) -> Artifact:
    return Artifact(artifact_id=name, name=name, description=description, parts=parts)


async def _changes(jobs: OwnedJobs, result: JobResult, base_url: str) -> list[Artifact]:
    listed = [one.model_dump(mode="json", exclude_defaults=True) for one in result.files_modified]
    files = [data_part({"files": listed, "omitted": result.files_omitted})]
    name = f"{result.job_id}.patch"
    patch = link_part(f"{base_url}/v1/jobs/{result.job_id}/patch", name, PATCH_TYPE)
    try:
        async with jobs.changes(result.job_id) as bundle:
            content = await asyncio.to_thread(bundle.patch)
            files += await asyncio.to_thread(_contents, bundle)
            if len(content) <= MAX_PATCH_BYTES:
                patch = file_part(content, name, PATCH_TYPE)
    except (BlobMissing, MalformedBundle, PatchFailed):  # only the list of the result remains
        return [_artifact("files", "The changed files.", *files)]
    return [
        _artifact("patch", "The changes, for `git apply`.", patch),
        _artifact("files", "The changed files, and the contents of the small ones.", *files),
    ]


def _contents(bundle: ChangeBundle) -> list[Part]:
    """Return the contents of changed files, the smaller ones first, as far as they fit."""
    room = MAX_FILES_BYTES
    found = {}
    for file in sorted(bundle.changes.files, key=lambda one: one.size_bytes):
        if file.after is None or file.after.kind != "file":
            continue
        room -= file.after.size_bytes
        if room < 0:
            break
        media_type = mimetypes.guess_type(file.path)[0] or BINARY_TYPE
        found[file.path] = file_part(bundle.content(file.after), file.path, media_type)
    return [part for _, part in sorted(found.items())]


@dataclass(frozen=True)
class Snapshot:
    """A task at one moment, and the position of its later updates."""

    task: Task
    record: JobRecord
    after: str
    """The last journal entry that the task accounts for."""
    waiting: frozenset[str]
    """The approvals that it requests."""
    models: str
    """The models for which it waits, as a text."""

    @property
    def has_ended(self) -> bool:
        """Whether no update follows."""
        return self.record.state.is_terminal


class TaskView:
    """Shows the jobs of one caller as tasks.

    Args:
        jobs: The caller's jobs.
        base_url: The origin of the service.
        hitl: Whether the client has activated the extension `hitl/v1`.
    """

    def __init__(self, jobs: OwnedJobs, base_url: str, *, hitl: bool) -> None:
        self.jobs = jobs
        self._base_url = base_url
        self._hitl = hitl

    async def snapshot(self, job_id: str, history_length: int | None = None) -> Snapshot:
        """Return a job as a task.

        The journal is read before the record. Events in between follow as updates, so that nothing
        is missed.

        Raises:
            UnknownJob: There is none with this id, for this caller.
        """
        messages, after = await history(self.jobs, await self.jobs.get(job_id), history_length)
        record = await self.jobs.get(job_id)
        waiting = [] if record.state.is_terminal else await waiting_below(self.jobs, record)
        models = await self.awaited_models(record)
        budget = await self.jobs.budget(job_id)
        task = await self.listed(record, waiting, models, budget, artifacts=True)
        task.history.extend([] if history_length == 0 else messages)
        asked = frozenset(one.approval.id for one in waiting)
        return Snapshot(task, record, after, asked, awaited_text(models))

    async def awaited_models(self, record: JobRecord) -> list[ClosedModel]:
        """Return the models for which a task waits: its job, and those below it."""
        if record.state.is_terminal:
            return []
        return await self.jobs.models_awaited_in_tree(record.id)

    async def listed(
        self,
        record: JobRecord,
        waiting: list[AwaitedCall],
        models: list[ClosedModel],
        budget: BudgetState,
        *,
        artifacts: bool = False,
    ) -> Task:
        """Return a job as a task of a list, without its history."""
        result = await self.jobs.result(record.id) if record.state.is_terminal else None
        task = Task(id=record.id, context_id=job_context(record))
        task.status.CopyFrom(self.status(record, waiting, models, result))
        task.metadata.update({"fanout.agent": record.agent, "fanout.state": record.state.value})
        if limited := budget.if_limited():
            shown = limited.model_dump(mode="json", exclude_none=True)
            task.metadata.update({"fanout.budget": shown})
        if artifacts and result is not None:
            task.artifacts.extend(await make_artifacts(self.jobs, result, self._base_url))
        return task

    def status(
        self,
        record: JobRecord,
        waiting: list[AwaitedCall],
        models: list[ClosedModel],
        result: JobResult | None = None,
    ) -> TaskStatus:
        """Return the status of a job.

        Args:
            record: The job.
            waiting: The calls of it and of jobs below it that wait for a decision.
            models: The models for which it and jobs below it wait.
            result: Its result when it has ended.
        """
        if waiting and not record.state.is_terminal:
            asked = max(one.approval.requested_at or 0 for one in waiting)
            return TaskStatus(
                state=TaskState.TASK_STATE_INPUT_REQUIRED,
                message=asking(record, waiting, hitl=self._hitl),
                timestamp=to_timestamp(max(asked, state_changed_time(record))),
            )
        status = TaskStatus(
            state=STATES[record.state], timestamp=to_timestamp(state_changed_time(record))
        )
        if record.state.is_terminal and record.state is not JobState.SUCCEEDED:
            status.message.CopyFrom(_failure(record, result))
        elif models:
            status.message.CopyFrom(_model_wait(record, models))
        return status


def awaited_text(models: list[ClosedModel]) -> str:
    """Return the models for which a task waits as a text for people; empty without any."""
    return "; ".join(one.waiting_sentence for one in models[:SHOWN_MODELS])


def _model_wait(record: JobRecord, models: list[ClosedModel]) -> Message:
    """Return what a task waits for, and until when: the first of its models may be open again."""
    text, first = awaited_text(models), models[0]
    message = Message(
        message_id=f"{record.id}:waits:{first.until:.0f}",
        task_id=record.id,
        context_id=job_context(record),
        role=Role.ROLE_AGENT,
        parts=[Part(text=text[0].upper() + text[1:] + ".")],
    )
    message.metadata.update(
        {
            "fanout.waits_for_model": first.name,
            "fanout.model_state": str(first.state),
            "fanout.waits_until": first.until,
        }
    )
    return message


def _failure(record: JobRecord, result: JobResult | None) -> Message:
    """Return why a job did not succeed: the reason of its record, and the type as metadata."""
    error = result.error if result else None
    happened = what_happened(error.type, error.message) if error else None
    text = happened or record.reason or record.state.value
    message = Message(
        message_id=f"{record.id}:end",
        task_id=record.id,
        context_id=job_context(record),
        role=Role.ROLE_AGENT,
        parts=[Part(text=text)],
    )
    if error:
        message.metadata.update({"adk_error_code": error.type, "fanout.retryable": error.retryable})
    return message


async def list_tasks(view: TaskView, params: ListTasksRequest) -> ListTasksResponse:
    """Return a page of tasks, those submitted last first.

    The tasks of sub-agents are in no list, because their parents' tasks include them.

    Raises:
        InvalidParamsError: The size, the token or the state is not valid.
    """
    size = params.page_size if params.HasField("page_size") else DEFAULT_PAGE_SIZE
    validate_page_size(size)
    position = _position(params.page_token)
    response = ListTasksResponse(page_size=size)
    if params.status and params.status not in JOB_STATES:
        return response
    labels = {CONTEXT_LABEL: params.context_id} if params.context_id else None
    states = JOB_STATES[params.status] if params.status else None
    wanted = JobFilter(states=states, labels=labels, roots_only=True)
    page = await view.jobs.page(wanted, position, size)
    waiting = await waiting_calls(view.jobs)
    budgets = await view.jobs.budgets(page.records)
    for record, budget in zip(page.records, budgets, strict=True):
        below = [one for one in waiting if one.record.root_id == record.root_id]
        asked = [] if record.state.is_terminal else below
        await _add(response, view, params, record, asked, budget)
    response.next_page_token = make_cursor(page.next) or ""
    response.total_size = await view.jobs.count(wanted, MAX_COUNTED)
    return response


async def _add(
    response: ListTasksResponse,
    view: TaskView,
    params: ListTasksRequest,
    record: JobRecord,
    waiting: list[AwaitedCall],
    budget: BudgetState,
) -> None:
    after = params.status_timestamp_after
    if params.HasField("status_timestamp_after") and (
        state_changed_time(record) < after.ToNanoseconds() / NANOSECONDS
    ):
        return
    models = [] if record.waits_until is None else await view.jobs.awaited_models([record])
    task = await view.listed(record, waiting, models, budget, artifacts=params.include_artifacts)
    if params.status and task.status.state != params.status:
        return
    if params.history_length:
        task.history.extend((await history(view.jobs, record, params.history_length))[0])
    response.tasks.append(task)


def _position(token: str) -> int | None:
    try:
        return read_cursor(token or None)
    except Problem:
        raise InvalidParamsError("pageToken is the nextPageToken of the previous page.") from None


def next_state(step: Message) -> TaskState:
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
        changed: Announces changed jobs: the decisions of sub-agents are not in the journal of the
            task's job.
        start: The task as the client knows it.
    """

    def __init__(self, view: TaskView, changed: ChangedJobs, start: Snapshot) -> None:
        self._view = view
        self._changed = changed
        self._record = start.record
        self._after = start.after
        self._asked = start.waiting
        self._models = start.models
        self._elsewhere: set[str] = set()

    async def follow(self) -> AsyncGenerator[Update]:
        """Yield updates until the job has ended, or waits for decisions not yet asked for.

        Raises:
            UnknownJob: The journal no longer exists.
            LedgerUnavailable: Redis was unavailable for longer than an outage is tolerated.
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
        """Collect the entries of the journal, and None whenever a job of the tree has changed."""
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
        """Return the status when other decisions or models are awaited than the client knows."""
        record = await self._view.jobs.get(self._record.id)
        if record.state.is_terminal:
            return None  # the journal shows it
        waiting = await waiting_below(self._view.jobs, record)
        models = await self._view.awaited_models(record)
        ids = frozenset(one.approval.id for one in waiting)
        known, self._asked = self._asked, ids
        told, self._models = self._models, awaited_text(models)
        if ids and ids <= known:
            return None  # some of them were answered: the others still wait
        if ids == known and told == self._models:
            return None
        return self._status(self._view.status(record, waiting, models))

    async def _told(self, entry: JournalEvent) -> list[TaskStatusUpdateEvent]:
        """Return the update for the client in an entry."""
        if entry.type is EventType.JOB_STATE:
            state = STATES[JobState(str(entry.data["state"]))]
            return [self._status(TaskStatus(state=state, timestamp=to_timestamp(entry.at)), entry)]
        message = await convert_entry(self._view.jobs, self._record, entry)
        if message is None:
            return []
        state = next_state(message)
        status = TaskStatus(state=state, message=message, timestamp=to_timestamp(entry.at))
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
            task_id=self._record.id, context_id=job_context(self._record), status=status
        )
        if entry is not None:
            update.metadata.update({"fanout.event_id": entry.id, "fanout.attempt": entry.attempt})
        return update
