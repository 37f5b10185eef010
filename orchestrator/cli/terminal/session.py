"""What most commands begin with: the settings, a client, whole ids.

And an event loop to work in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from orchestrator.cli.terminal import output
from orchestrator.client import JobClient
from orchestrator.configuration.settings import Settings, load_settings
from orchestrator.embedded.services import reachable
from orchestrator.jobs.failures import UnknownJob

T = TypeVar("T")

CANCEL_AGAIN_SECONDS = 0.2
"""Before Python 3.12 `wait_for` may lose a cancel, so it is repeated."""


@asynccontextmanager
async def open_client(settings: Settings | None = None) -> AsyncIterator[JobClient]:
    """A client of the configured Redis, or of the one that `fanout up` left running, or that was killed.

    Raises:
        LedgerUnavailable: there is neither, or it does not answer.
    """
    found = await reachable(settings or load_settings(), output.notice)
    async with JobClient.from_settings(found) as client:
        yield client


async def end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they are done.

    Once is not enough on Python 3.11: `wait_for` drops a cancellation that meets its answer.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCEL_AGAIN_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)


async def resolve_tree(client: JobClient, prefix: str) -> str:
    """An id that `client.tree` takes.

    Of a job, also shortened, or of a coordinator's run, which is none.
    """
    try:
        await client.tree(prefix)
    except UnknownJob:
        return await client.resolve(prefix)
    return prefix


async def resolve_all(client: JobClient, prefixes: Sequence[str]) -> list[str]:
    """Whole ids for shortened ones, in order, each once."""
    ids = [await client.resolve(prefix) for prefix in prefixes]
    return list(dict.fromkeys(ids))
