"""The commit of a job's result, with what was said to the job too late."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

from orchestrator.jobs.failures import MessagesUnread
from orchestrator.jobs.result import JobResult
from orchestrator.jobs.store.journal import Journal
from orchestrator.jobs.store.ledger import Claim, Ledger

UNREAD_CHARACTERS = 200
"""Of a message that nobody read: enough for its sender to know it again."""


async def commit(
    ledger: Ledger,
    journal: Journal,
    claim: Claim,
    result: JobResult,
    data: Mapping[str, JsonValue],
    *,
    messages_read: int,
) -> bool:
    """Commit a result that names the messages which came after the agent had last looked.

    They were taken, so whoever sent them is told; the next one finds that the job has ended. False
    when the attempt no longer holds the job.
    """
    job_id = claim.spec.id
    while True:
        unread = await journal.messages(job_id, messages_read)
        beginnings = tuple(text[:UNREAD_CHARACTERS] for text in unread)
        named = result.model_copy(update={"unread_messages": beginnings})
        try:
            return await ledger.finish(
                job_id, claim.token, named, data, messages_read + len(unread)
            )
        except MessagesUnread:
            continue
