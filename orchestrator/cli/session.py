"""What most commands begin with: the settings, a client, whole ids; and an event loop to work in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from config.settings import Settings, load_settings
from orchestrator.client import JobClient
from orchestrator.embedded import attached

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Do asynchronous work from a command."""
    return asyncio.run(work)


@asynccontextmanager
async def open_client(settings: Settings | None = None) -> AsyncIterator[JobClient]:
    """A client of the configured Redis, or of the one that `fanout up` left running.

    Raises:
        LedgerUnavailable: there is neither, or it does not answer.
    """
    reachable = attached(settings or load_settings())
    async with JobClient.from_settings(reachable) as client:
        yield client


async def resolve_all(client: JobClient, prefixes: Sequence[str]) -> list[str]:
    """Whole ids for shortened ones, in order, each once."""
    ids = [await client.resolve(prefix) for prefix in prefixes]
    return list(dict.fromkeys(ids))
