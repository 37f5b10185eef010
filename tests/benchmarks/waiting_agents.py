"""Agents that have used a tool and wait for their model, many in one worker."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.journal import EventType
from fanout.orchestrator.jobs.store.keys import Keys
from tests.integration.scripts import DONE, call, calls, conversation, write_script
from tests.services import Installation

MODEL_SECONDS = 600
"""How long the model thinks; the jobs are cancelled long before."""
LOOK_SECONDS = 0.25
"""Between two looks at the journals."""
LOOKED_AT = 50
"""Jobs at once."""
NEWEST = 4
"""Entries of each journal that a look asks for."""


def waiting_script(folder: Path) -> Path:
    """A file is written, so that the agent has had its tools and sandbox.

    Then the model takes its time.
    """
    write = calls(call("write_file", file_path="/workspace/note.txt", content="Here I was.\n"))
    return write_script(folder, conversation(".*", write, {**DONE, "delay_seconds": MODEL_SECONDS}))


async def submit_waiting(client: JobClient, agents: int) -> Sequence[str]:
    """Submit so many jobs and return their ids."""
    specs = [JobSpec(description=f"Wait, number {number}.") for number in range(agents)]
    return await client.submit_many([(spec, None) for spec in specs])


async def all_at_work(place: Installation, ids: Collection[str], seconds: float) -> None:
    """Wait until each job's tool has answered and its model is asked again.

    Only the first of those that are still to come are looked at: to look at a thousand journals
    again and again would take a third of a processor from the worker.
    """
    coming = list(ids)
    async with asyncio.timeout(seconds), connect(place.redis.url) as redis:
        while coming:
            looked_at, coming = coming[:LOOKED_AT], coming[LOOKED_AT:]
            pipeline = redis.pipeline(transaction=False)
            for job in looked_at:
                pipeline.xrevrange(Keys().journal(job), count=NEWEST)
            newest: list[Any] = await pipeline.execute()
            missing = [
                job
                for job, entries in zip(looked_at, newest, strict=True)
                if not _is_at_work([fields["type"] for _, fields in entries])
            ]
            if missing:
                await asyncio.sleep(LOOK_SECONDS)
            coming = [*missing, *coming]


def _is_at_work(newest: Sequence[str]) -> bool:
    """Of the types of a job's newest entries; a busy worker may note a request twice."""
    return newest[:1] == [EventType.MODEL_REQUEST] and EventType.TOOL_RESULT in newest
