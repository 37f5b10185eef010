"""What most commands begin with: the settings, a client, whole ids.

And an event loop to work in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from orchestrator.cli.terminal import output
from orchestrator.client import JobClient
from orchestrator.configuration.settings import Settings, load_settings
from orchestrator.embedded.services import reachable
from orchestrator.jobs.failures import UnknownJob


@asynccontextmanager
async def open_client(settings: Settings | None = None) -> AsyncIterator[JobClient]:
    """A client of the configured Redis, or of the one that `fanout up` left running, or that was killed.

    Raises:
        LedgerUnavailable: there is neither, or it does not answer.
    """
    found = await reachable(settings or load_settings(), output.notice)
    async with JobClient.from_settings(found) as client:
        yield client


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
