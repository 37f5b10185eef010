"""A job's journal as messages: what its agent said and did, with the metadata of ADK's converters.

The journal holds ADK's own events, so texts, calls, their results, code and files are converted by
ADK's converter. Ids are derived from the journal's: whoever reads again gets the same messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from importlib import import_module

from a2a.types import Message, Part, Role

from ...jobs.failures import BlobMissing
from ...jobs.state import JobRecord
from ...jobs.store.journal import BEGINNING, EventType, JournalEvent
from ...server.owned_jobs import OwnedJobs
from .protocol import MESSAGE_LABEL, job_context

SHOWN = frozenset({EventType.MODEL_REPLY, EventType.TOOL_RESULT, EventType.SESSION_EVENT})
"""The entries that hold an event of the agent."""
MAX_HISTORY = 100
"""The most messages of one task's history; the journal (`/v1/jobs/ID/events`) has all."""
DEFAULT_HISTORY = 20
"""The length when the client names none: enough for the last steps, and a task stays small."""
PAGE = 500
AGENT_EVENTS = "fanout.orchestrator.extras.a2a.agent_events"
"""The module that is loaded in a thread when a client first asks for an agent's steps, so that the
loop can serve meanwhile."""


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
        shown = [one for one in page if one.type in SHOWN or one.type is EventType.MESSAGE]
        count += len(shown)
        newest.extend(shown)
        if len(page) < PAGE:
            break
    messages = [await convert_entry(jobs, record, one) for one in newest]
    found = [one for one in messages if one is not None]
    return ([_task_message(record), *found] if count < limit else found), after


def _task_message(record: JobRecord) -> Message:
    """Return the message that started a job."""
    return Message(
        message_id=record.labels.get(MESSAGE_LABEL, record.id),
        task_id=record.id,
        context_id=job_context(record),
        role=Role.ROLE_USER,
        parts=[Part(text=record.description)],
    )


async def convert_entry(jobs: OwnedJobs, record: JobRecord, entry: JournalEvent) -> Message | None:
    """Return an entry of a journal as a message; None for one without content for clients."""
    message = Message(
        message_id=f"{record.id}:{entry.id}", task_id=record.id, context_id=job_context(record)
    )
    if entry.type is EventType.MESSAGE:
        message.role = Role.ROLE_USER
        message.parts.append(Part(text=str(entry.data.get("text", ""))))
        return message
    if entry.type not in SHOWN or not await _filled(message, jobs, entry):
        return None
    return message if message.parts else None


async def _filled(message: Message, jobs: OwnedJobs, entry: JournalEvent) -> bool:
    """Add an entry's event of the agent; return whether there is a readable one."""
    try:
        content = await jobs.session_event(entry)
    except BlobMissing:  # an old one
        return False
    if content is None:
        return False
    await asyncio.to_thread(import_module, AGENT_EVENTS)
    from .agent_events import fill  # noqa: PLC0415 - see there

    return fill(message, content)
