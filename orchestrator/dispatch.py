"""Dispatch: the parent's half of a job. Submit, wait on the journal, merge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.client import JobClient
from orchestrator.jobs.journal import JournalEvent
from orchestrator.jobs.result import JobResult
from orchestrator.jobs.spec import JobSpec
from orchestrator.merge import MergeReport


@dataclass(frozen=True)
class Delivery:
    """A job that has ended, and what became of its changes in the parent's workspace."""

    result: JobResult
    merge: MergeReport | None
    """None when there was nothing to merge."""


async def dispatch(
    client: JobClient, spec: JobSpec, workspace: Path
) -> AsyncIterator[JournalEvent | Delivery]:
    """Run a job on the workspace: its journal as it grows, then its delivery.

    A caller that goes away cancels the job. Doing it again with the same id finds the same job, so a
    parent that died and came back waits for what it had submitted.
    """
    job_id = await client.submit(spec, workspace=workspace)
    try:
        async for event in client.events(job_id):
            yield event
    except (asyncio.CancelledError, GeneratorExit):
        await asyncio.shield(client.cancel(job_id))
        raise
    yield await deliver(client, job_id, workspace)


async def deliver(client: JobClient, job_id: str, workspace: Path) -> Delivery:
    """Wait for a submitted job's end and merge what it changed; merging again changes nothing.

    Changes of a job that did not succeed stay out of the workspace: they can be seen and applied by hand.
    """
    result = await client.wait(job_id)
    merged = await client.merge(result, workspace) if result.success else None
    return Delivery(result, merged)
