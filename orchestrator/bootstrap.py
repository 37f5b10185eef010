"""The composition root for ADK's commands: makes a coordinator's app from the settings."""

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
    """Return the app of a coordinator on the workspace that the settings name.

    Without FANOUT_REDIS_URL it uses the Redis that `fanout up` started, or starts its own.

    Raises:
        InvalidSetting: A setting is not usable.
        InvalidAgentDefinition: An agent definition is invalid.
        LedgerUnavailable: No Redis could be started.
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
    """An embedded Redis and worker, which a thread of their own runs until the process ends.

    ADK imports an agent inside or outside of a running loop, so they need a loop of their own. The
    operating system ends such children together with the thread that started them, so the thread
    has to live as long as they do.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._ready = threading.Event()
        self._failure: Exception | None = None
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()

    def start(self) -> Settings:
        """Start Redis and the worker, and return the settings with their address.

        Raises:
            Exception: Whatever the start raised.
        """
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
        except Exception as error:  # noqa: BLE001 - `start` raises it in the waiting thread
            self._failure = error
            self._ready.set()

    def _stop(self, thread: threading.Thread) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        thread.join()
