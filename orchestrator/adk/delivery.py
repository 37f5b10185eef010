"""The parent's side of a job: submit it, follow its journal, merge its changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

from fanout.orchestrator.client import JobClient
from fanout.orchestrator.jobs.failures import JobFailure
from fanout.orchestrator.jobs.result import JobResult
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.store.journal import JournalEvent
from fanout.orchestrator.workspace.merge_report import MergeReport


@dataclass(frozen=True)
class Delivery:
    """The result of a job, and the report of the merge of its changes."""

    result: JobResult
    merge: MergeReport | None
    """None when nothing was merged."""


async def deliver(
    client: JobClient, spec: JobSpec, workspace: Path
) -> AsyncGenerator[JournalEvent | Delivery]:
    """Run a job on a workspace: yield its journal's events as they are written, then its delivery.

    Cancelling or closing the generator cancels the job. A second call with the same job id follows
    the same job, so a restarted parent waits for the jobs that it had submitted.

    Args:
        client: Submits the job.
        spec: The job.
        workspace: The folder that the job starts from and whose files its changes are merged into.

    Raises:
        JobFailure: The job cannot be submitted or followed, or its changes cannot be merged.
    """
    try:
        job_id = await client.submit(spec, workspace=workspace)
        async with contextlib.aclosing(client.events(job_id)) as events:
            async for event in events:
                yield event
    except (asyncio.CancelledError, GeneratorExit):
        # It may have been stored before `submit` returned.
        await asyncio.shield(_cancel_quietly(client, spec.id))
        raise
    yield await collect(client, job_id, workspace)


async def _cancel_quietly(client: JobClient, job_id: str) -> None:
    """Cancel a job; a failure is ignored, because no caller is left that could handle it."""
    with contextlib.suppress(JobFailure):
        await client.cancel(job_id)


async def collect(client: JobClient, job_id: str, workspace: Path) -> Delivery:
    """Wait for the end of a submitted job and merge its changes.

    Merging again changes nothing. Changes of a job that did not succeed are not merged; they can be
    viewed and applied by hand.

    Args:
        client: Reads the result.
        job_id: The job.
        workspace: The folder whose files the changes are merged into.

    Raises:
        JobFailure: The result cannot be read, or the changes cannot be merged.
    """
    result = await client.wait(job_id)
    if not result.success:
        return Delivery(result, None)
    return Delivery(result, await client.merge(result, workspace))
