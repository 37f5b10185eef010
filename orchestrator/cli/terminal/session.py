"""What most commands begin with: the settings, a client, whole ids.

And an event loop to work in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from orchestrator.cli.terminal import output
from orchestrator.client import JobClient
from orchestrator.configuration.settings import Settings, load_settings
from orchestrator.embedded.services import reachable


@asynccontextmanager
async def open_client(settings: Settings | None = None) -> AsyncIterator[JobClient]:
    """A client of the configured Redis, or of the one that `fanout up` left running, or that was killed.

    Raises:
        LedgerUnavailable: there is neither, or it does not answer.
    """
    found = await reachable(settings or load_settings(), output.notice)
    async with JobClient.from_settings(found) as client:
        yield client
