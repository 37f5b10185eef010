"""What most commands start with: a connected client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from orchestrator.cli.terminal import output
from orchestrator.client import JobClient
from orchestrator.configuration.settings import Settings, load_settings
from orchestrator.embedded.services import in_use


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
