"""The conversation in a job's journal: the agent's events, without work whose files were lost."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence

from .failures import AttemptsUsedUp
from .payloads import OUTLINE
from .result import JobResult
from .store.journal import EventType, Journal, JournalEvent

LASTING = frozenset(
    {
        EventType.JOB_STATE,
        EventType.APPROVAL_REQUESTED,
        EventType.APPROVAL_RESOLVED,
        EventType.CHILD_SUBMITTED,
        EventType.CHILD_FINISHED,
        EventType.MESSAGE,
    }
)
"""The kinds of entries that stay valid when a host and its files are lost, because they do not
depend on files."""


def split_lost(
    entries: Sequence[JournalEvent],
) -> tuple[list[JournalEvent], list[JournalEvent]]:
    """Return the entries of the current conversation, and those of work whose files were lost.

    After a checkpoint was restored, the conversation continues from the checkpoint; later answers
    of people and ends of children still count. Without a checkpoint it starts again.
    """
    kept: list[JournalEvent] = []
    lost: list[JournalEvent] = []
    for entry in entries:
        if entry.type is EventType.SANDBOX_READY:
            newly_lost = _without_files(kept, entry)
            lost += newly_lost
            lost_ids = {other.id for other in newly_lost}
            kept = [other for other in kept if other.id not in lost_ids]
        kept.append(entry)
    return kept, lost


def _without_files(entries: Sequence[JournalEvent], ready: JournalEvent) -> list[JournalEvent]:
    """Return the entries about files that a new sandbox does not have."""
    if ready.data.get("resumed") is False:
        return list(entries)
    checkpoint = ready.data.get("checkpoint")
    if checkpoint is None:
        return []
    ids = [entry.id for entry in entries]
    after = entries[ids.index(str(checkpoint)) + 1 :]
    return [entry for entry in after if entry.type not in LASTING]


def conversation_of_result(
    entries: Sequence[JournalEvent], result: JobResult
) -> list[JournalEvent]:
    """Return the entries of the conversation to which the files of a job's result belong.

    The result of a job that ended without its worker has the files of a checkpoint, and what the
    agent did after it is lost; without a checkpoint, all that followed its task.

    Args:
        entries: The job's journal.
        result: Its result.
    """
    kept, _ = split_lost(entries)
    end = _end(kept, result)
    return [*kept[:end], *(entry for entry in kept[end:] if entry.type in LASTING)]


def _end(kept: Sequence[JournalEvent], result: JobResult) -> int:
    points = [index for index, entry in enumerate(kept) if entry.type is EventType.CHECKPOINT]
    if result.error is not None and result.error.type == AttemptsUsedUp.__name__:
        tasks = (index for index, entry in enumerate(kept) if _holds_event(entry))
        return (points[-1] if points else next(tasks, -1)) + 1
    reported = (index for index in points if kept[index].data["changes"] == result.changes)
    return next(reported, len(kept) - 1) + 1


def _holds_event(entry: JournalEvent) -> bool:
    return not {"event", OUTLINE, "event_blob"}.isdisjoint(entry.data)


async def event_json(
    entry: JournalEvent, journal: Journal, read_blob: Callable[[str], Awaitable[bytes]]
) -> bytes | None:
    """Return the agent's event that an entry holds, as one line of JSON; None if it holds none.

    A long value whose blob has expired is replaced by a sentence that says so.

    Args:
        entry: The entry.
        journal: The journal that it is from.
        read_blob: Returns the content of a blob; large events and values are blobs.

    Raises:
        BlobMissing: The blob of a whole event has expired.
        LedgerUnavailable: Redis does not respond.
    """
    entry = await journal.complete(entry, read_blob)
    if "event" in entry.data:
        return json.dumps(entry.data["event"]).encode()
    if "event_blob" in entry.data:
        return await read_blob(str(entry.data["event_blob"]))
    return None
