"""What most commands start with: a connected client; and the result of a job that has ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.exit_codes import WorkFailed
from orchestrator.client import JobClient
from orchestrator.configuration.settings import Settings, load_settings
from orchestrator.embedded.services import in_use
from orchestrator.jobs.result import JobResult


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
    async with (
        in_use(settings or load_settings(), output.notice) as found,
        JobClient.from_settings(found) as client,
    ):
        yield client


async def ended_result(client: JobClient, job_id: str) -> JobResult:
    """Return the result of a job that has ended.

    Raises:
        WorkFailed: The job has not ended.
        UnknownJob: The job does not exist.
    """
    result = await client.result(job_id)
    if result is None:
        raise WorkFailed(f"Job {job_id} has not ended; wait for it: fanout wait {job_id}")
    return result
