"""Agents on workers that delegate, and how tests look at what they started."""

from __future__ import annotations

import asyncio
from typing import Any

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.state import JobRecord, JobState
from fanout.orchestrator.jobs.store.journal import EventType, JournalEvent
from tests.integration.scripts import call, calls

LEAD = """
name: lead
description: Delegates.
instruction: Do it.
subagents: [lead, general-purpose]
"""

TALKER = """
name: talker
description: Answers with data.
instruction: Do it.
output_schema: {type: object, properties: {words: {type: array}}}
"""

GUARDED_LEAD = """
name: guarded-lead
description: Delegates what a person approves.
instruction: Do it.
subagents: [general-purpose]
interrupt_on: {task: true}
"""


DELEGATING = {
    "lead": LEAD.replace("[lead,", "[lead, talker,"),
    "talker": TALKER,
    "guarded-lead": GUARDED_LEAD,
}
"""The definitions of agents that delegate."""


def task(description: str, agent: str = "general-purpose", **more: Any) -> dict[str, Any]:
    return call("task", description=description, subagent_type=agent, **more)


def delegates(*descriptions: str, agent: str = "general-purpose") -> dict[str, Any]:
    """A reply that delegates these, all at once."""
    return calls(*(task(description, agent) for description in descriptions))


async def until(client: JobClient, job_id: str, state: JobState) -> JobRecord:
    """The job's record, once it has come to that state."""
    async with asyncio.timeout(60):
        async for event in client.events(job_id):
            if event.type is EventType.JOB_STATE and event.data["state"] == state:
                return await client.get(job_id)
    raise AssertionError("the journal ended")


async def children_of(client: JobClient, job_id: str) -> list[JobRecord]:
    return [record for record in await client.tree(job_id) if record.parent_id == job_id]


async def answers(client: JobClient, job_id: str, tool: str = "task") -> list[dict[str, Any]]:
    """What the job's delegating calls answered in the end, as its journal has it."""
    found: dict[str, dict[str, Any]] = {}
    async for event in client.events(job_id, follow=False):
        for part in _responses(event):
            if part["name"] == tool:
                found[part["id"]] = part["response"]
    return list(found.values())


def _responses(event: JournalEvent) -> list[dict[str, Any]]:
    data: Any = event.data.get("event") or {}
    parts = (data.get("content") or {}).get("parts") or []
    return [part["function_response"] for part in parts if part.get("function_response")]
