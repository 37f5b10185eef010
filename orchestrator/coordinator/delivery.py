"""Dispatch: the parent's half of a job. Submit, wait on the journal, merge."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.client import JobClient
from orchestrator.jobs.failures import JobFailure
from orchestrator.jobs.result import JobResult
from orchestrator.jobs.spec import JobSpec
from orchestrator.jobs.store.journal import JournalEvent
from orchestrator.workspace.merge import MergeReport


@dataclass(frozen=True)
class Delivery:
    """A job that has ended, and what became of its changes in the parent's workspace."""

    result: JobResult
    merge: MergeReport | None
    """None when there was nothing to merge."""


async def dispatch(
    client: JobClient, spec: JobSpec, workspace: Path
) -> AsyncGenerator[JournalEvent | Delivery]:
    """Run a job on the workspace: its journal as it grows, then its delivery.

    A caller that goes away cancels the job. Doing it again with the same id finds the same job, so
    a parent that died and came back waits for what it had submitted.
    """
    try:
        job_id = await client.submit(spec, workspace=workspace)
        async for event in client.events(job_id):
            yield event
    except (asyncio.CancelledError, GeneratorExit):
        await asyncio.shield(
            _give_up(client, spec.id)
        )  # it may have been stored before submit returned
        raise
    yield await deliver(client, job_id, workspace)


async def _give_up(client: JobClient, job_id: str) -> None:
    """Cancel a job as far as that can be done: nobody is left to be told that it cannot."""
    with contextlib.suppress(JobFailure):
        await client.cancel(job_id)


async def deliver(client: JobClient, job_id: str, workspace: Path) -> Delivery:
    """Wait for a submitted job's end and merge what it changed; merging again changes nothing.

    Changes of a job that did not succeed stay out of the workspace: they can be seen and applied by
    hand.
    """
    result = await client.wait(job_id)
    merged = await client.merge(result, workspace) if result.success else None
    return Delivery(result, merged)
