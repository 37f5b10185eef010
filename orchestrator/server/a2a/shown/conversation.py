"""A job's journal as messages: what its agent said and did, with the metadata of ADK's converters.

The journal holds ADK's own events, so texts, calls, their results, code and files are converted by
ADK's converter. Ids are derived from the journal's: whoever reads again gets the same messages.
"""

from __future__ import annotations

import warnings
from collections import deque

from a2a.types import Message, Part, Role, TaskArtifactUpdateEvent
from google.adk.a2a.converters.from_adk_event import convert_event_to_a2a_events
from google.adk.events import Event
from google.protobuf.json_format import MessageToDict
from pydantic import ValidationError

from fanout.orchestrator.jobs.failures import BlobMissing
from fanout.orchestrator.jobs.state import JobRecord
from fanout.orchestrator.jobs.store.journal import BEGINNING, EventType, JournalEvent
from fanout.orchestrator.server.a2a.shown.approval_requests import CONFIRMATION
from fanout.orchestrator.server.a2a.shown.records import MESSAGE_LABEL, context_of
from fanout.orchestrator.server.owned_jobs import OwnedJobs

SHOWN = frozenset({EventType.MODEL_REPLY, EventType.TOOL_RESULT, EventType.SESSION_EVENT})
"""The entries that hold an event of the agent."""
MAX_HISTORY = 100
"""Messages of one task's history; the journal (`/v1/jobs/ID/events`) has all."""
DEFAULT_HISTORY = 20
"""When the client names no length: enough for the last steps, and a task stays small."""
PAGE = 500
INTERNAL_METADATA = ("adk_actions", "adk_custom_metadata", "adk_invocation_id")
"""What ADK adds of its own state: the harness keeps the agent's plan and files there."""
LONG_RUNNING = "adk_is_long_running"


async def history(
    jobs: OwnedJobs, record: JobRecord, length: int | None
) -> tuple[list[Message], str]:
    """Return the newest messages of a job, oldest first, and the id of the last journal entry.

    Args:
        jobs: The caller's jobs.
        record: The job.
        length: At most so many; None: `DEFAULT_HISTORY`.
    """
    limit = min(DEFAULT_HISTORY if length is None else length, MAX_HISTORY)
    newest: deque[JournalEvent] = deque(maxlen=limit)
    count, after = 0, BEGINNING
    while page := await jobs.read_events(record.id, after, PAGE):
        after = page[-1].id
        told = [one for one in page if one.type in SHOWN or one.type is EventType.MESSAGE]
        count += len(told)
        newest.extend(told)
        if len(page) < PAGE:
            break
    messages = [await message_of(jobs, record, one) for one in newest]
    found = [one for one in messages if one is not None]
    return ([_task_of(record), *found] if count < limit else found), after


def _task_of(record: JobRecord) -> Message:
    """Return the message that began a job."""
    return Message(
        message_id=record.labels.get(MESSAGE_LABEL, record.id),
        task_id=record.id,
        context_id=context_of(record),
        role=Role.ROLE_USER,
        parts=[Part(text=record.description)],
    )


async def message_of(jobs: OwnedJobs, record: JobRecord, entry: JournalEvent) -> Message | None:
    """Return an entry of a journal as a message; None for one that tells a client nothing."""
    message = Message(
        message_id=f"{record.id}:{entry.id}", task_id=record.id, context_id=context_of(record)
    )
    if entry.type is EventType.MESSAGE:
        message.role = Role.ROLE_USER
        message.parts.append(Part(text=str(entry.data.get("text", ""))))
        return message
    event = await _agent_event(jobs, entry) if entry.type in SHOWN else None
    if event is None:
        return None
    message.role = Role.ROLE_USER if event.author == "user" else Role.ROLE_AGENT
    _fill(message, event)
    return message if message.parts else None


async def _agent_event(jobs: OwnedJobs, entry: JournalEvent) -> Event | None:
    try:
        content = await jobs.session_event(entry)
        return None if content is None else Event.model_validate_json(content)
    except (BlobMissing, ValidationError):  # an old one, or one of another release
        return None


def _fill(message: Message, event: Event) -> None:
    """Add the parts and the metadata of an agent's event.

    The confirmation that it asks for is left out: the status message asks for it, by the id of the
    approval. What a model's service said of an error is left out too: it may hold a secret.
    """
    long_running = event.long_running_tool_ids or set()
    if event.content and event.content.parts:
        event.content.parts = [
            one
            for one in event.content.parts
            if CONFIRMATION
            not in (
                one.function_call and one.function_call.name,
                one.function_response and one.function_response.name,
            )
        ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\[EXPERIMENTAL\]")
        updates = convert_event_to_a2a_events(event, {}, message.task_id, message.context_id)
    for update in updates:
        if isinstance(update, TaskArtifactUpdateEvent):
            message.parts.extend(update.artifact.parts)
            message.metadata.CopyFrom(update.artifact.metadata)
    for name in INTERNAL_METADATA:
        if name in message.metadata:
            del message.metadata[name]
    for part in message.parts:
        if part.HasField("data") and MessageToDict(part.data).get("id") in long_running:
            part.metadata.update({LONG_RUNNING: True})
