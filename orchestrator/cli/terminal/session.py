"""What most commands start with: a connected client, and full job ids for shortened ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.exit_codes import WorkFailed
from orchestrator.client import JobClient
from orchestrator.configuration.settings import Settings, load_settings
from orchestrator.embedded.services import reachable
from orchestrator.jobs.failures import UnknownJob
from orchestrator.jobs.result import JobResult

CANCEL_AGAIN_SECONDS = 0.2
"""Between repeated cancellations: before Python 3.12 `wait_for` may lose one."""


@asynccontextmanager
async def open_client(settings: Settings | None = None) -> AsyncIterator[JobClient]:
    """Yield a client of the configured Redis, or of the one that `fanout up` started.

    A Redis of `fanout up` that was killed is started again.

    Args:
        settings: default: loaded from the environment and the settings files.

    Raises:
        InvalidSetting: a setting has a value that is not allowed.
        LedgerUnavailable: no Redis is configured or running, or it does not answer.
    """
    found = await reachable(settings or load_settings(), output.notice)
    async with JobClient.from_settings(found) as client:
        yield client


async def end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until all are done.

    Cancelling once is not enough on Python 3.11: `wait_for` drops a cancellation that arrives
    together with its result.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCEL_AGAIN_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)


async def ended_result(client: JobClient, job_id: str) -> JobResult:
    """Return the result of a job that has ended.

    Raises:
        WorkFailed: the job has not ended.
        UnknownJob: there is no such job.
    """
    result = await client.result(job_id)
    if result is None:
        raise WorkFailed(f"Job {job_id} has not ended; wait for it: fanout wait {job_id}")
    return result


async def resolve_tree(client: JobClient, prefix: str) -> str:
    """Return an id that `client.tree` accepts.

    Args:
        client: the connected client.
        prefix: a job id, which may be shortened, or the full root id of a coordinator's run, for
            which no job exists.

    Raises:
        UnknownJob: no job has an id with this prefix.
        InvalidJob: several jobs have.
    """
    try:
        await client.tree(prefix)
    except UnknownJob:
        return await client.resolve(prefix)
    return prefix


async def resolve_all(client: JobClient, prefixes: Sequence[str]) -> list[str]:
    """Return the full ids for shortened ones, in order and without repetitions.

    Raises:
        UnknownJob: no job has an id with one of the prefixes.
        InvalidJob: several jobs have.
    """
    ids = [await client.resolve(prefix) for prefix in prefixes]
    return list(dict.fromkeys(ids))
