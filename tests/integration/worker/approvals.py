"""An agent whose calls a person approves, and how tests wait for it."""

from __future__ import annotations

import asyncio

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.approvals import Approval
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent

GUARDED = """
name: guarded
description: Works under supervision.
instruction: Do it.
interrupt_on:
  execute: true
  write_file: [approve, respond]
"""


MISSPELT = """
name: misspelt
description: Guards a tool that nobody has.
instruction: Do it.
interrupt_on:
  exceute: true
"""


SUPERVISED = {"guarded": GUARDED, "misspelt": MISSPELT}
"""The definitions of a guarded agent, and of one whose policy guards nothing."""


async def parked(client: JobClient, job_id: str, times: int = 1) -> list[Approval]:
    """What the job waits for, once it waits for the so-manieth time."""
    seen = 0
    async with asyncio.timeout(45):
        async for event in client.events(job_id):
            assert not event.ends_job, event.data
            seen += event.type is EventType.JOB_STATE and event.data["state"] == JobState.WAITING
            if seen == times:
                break
    return [approval for approval in await client.approvals() if approval.job_id == job_id]


async def journal(client: JobClient, job_id: str, kind: EventType) -> list[JournalEvent]:
    """The events of a kind."""
    events = [event async for event in client.events(job_id, follow=False)]
    return [event for event in events if event.type is kind]


async def file_of(client: JobClient, job_id: str, path: str) -> str:
    """What a job has made of a file."""
    async with client.changes(job_id) as bundle:
        (file,) = [file for file in bundle.changes.files if file.path == path]
        assert file.after is not None
        return (await asyncio.to_thread(bundle.content, file.after)).decode()
