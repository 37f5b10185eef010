"""The composition root behind ADK's door: settings become a coordinator's app."""

from __future__ import annotations

import asyncio
import atexit
import threading

from google.adk.apps import App

from orchestrator.client import JobClient
from orchestrator.configuration.agent_definitions import COORDINATOR
from orchestrator.configuration.settings import Settings, load_settings
from orchestrator.coordinator.coordinator import (
    budgets_of,
    create_coordinator,
    create_coordinator_app,
)
from orchestrator.embedded.services import Embedded, attached
from orchestrator.jobs.failures import LedgerUnavailable


def coordinator_app() -> App:
    """The coordinator on the workspace of the settings.

    Without FANOUT_REDIS_URL it works with the Redis that `fanout up` left running, or starts its
    own.
    """
    settings = load_settings()
    try:
        settings = attached(settings)
    except LedgerUnavailable:
        settings = _EmbeddedInBackground(settings).start()
    client = JobClient.from_settings(settings)
    coordinator = create_coordinator(
        client, workspace=settings.workspace.absolute(), default_model=settings.model
    )
    return create_coordinator_app(coordinator, budgets_of(client.definitions[COORDINATOR]))


class _EmbeddedInBackground:
    """An embedded Redis and worker, held by a thread of their own until the process ends.

    ADK imports an agent inside or outside of a running loop, so neither can hold them; and the
    kernel ends such children with the thread that started them, so it has to stay.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._ready = threading.Event()
        self._failure: Exception | None = None
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()

    def start(self) -> Settings:
        """Start them; the settings that reach them."""
        thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._hold(),), daemon=True
        )
        thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure
        atexit.register(self._stop, thread)
        return self._settings

    async def _hold(self) -> None:
        try:
            async with Embedded(self._settings) as embedded:
                self._settings = embedded.settings
                self._ready.set()
                await self._over.wait()
        except Exception as error:  # noqa: BLE001 - the thread that waits raises it
            self._failure = error
            self._ready.set()

    def _stop(self, thread: threading.Thread) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        thread.join()
