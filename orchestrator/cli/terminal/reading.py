"""What commands start with that only read; it is imported faster than `session.py`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.exit_codes import WorkFailed
from orchestrator.client.job_reader import JobReader
from orchestrator.configuration.settings import load_settings
from orchestrator.embedded.services import in_use
from orchestrator.jobs.result import JobResult


@asynccontextmanager
async def open_reader() -> AsyncIterator[JobReader]:
    """Yield a reader of the configured Redis, or of the one that `fanout up` started.

    A Redis of `fanout up` that was killed is started again.

    Raises:
        InvalidSetting: a setting has a value that is not allowed.
        LedgerUnavailable: no Redis is configured or running, or it does not answer.
    """
    async with (
        in_use(load_settings(), output.notice) as found,
        JobReader.from_settings(found) as reader,
    ):
        yield reader


async def ended_result(reader: JobReader, job_id: str) -> JobResult:
    """Return the result of a job that has ended.

    Raises:
        WorkFailed: The job has not ended.
        UnknownJob: The job does not exist.
    """
    result = await reader.result(job_id)
    if result is None:
        raise WorkFailed(f"Job {job_id} has not ended; wait for it: fanout wait {job_id}")
    return result
