"""The composition root for ADK's commands: makes a coordinator's app from the settings."""

from __future__ import annotations

import atexit
from contextlib import ExitStack

from anyio.from_thread import start_blocking_portal
from google.adk.apps import App

from orchestrator.client import JobClient
from orchestrator.configuration.agent_definitions import COORDINATOR
from orchestrator.configuration.settings import Settings, load_settings
from orchestrator.coordinator.coordinator import (
    budgets_of,
    create_coordinator,
    create_coordinator_app,
)
from orchestrator.embedded.services import Embedded, attached_for_run
from orchestrator.jobs.failures import LedgerUnavailable
from orchestrator.process_secrets import seal_process


def coordinator_app() -> App:
    """Return the app of a coordinator on the workspace that the settings name.

    Without FANOUT_REDIS_URL it uses the Redis that `fanout up` started, or starts its own.

    Raises:
        InvalidSetting: A setting is not usable.
        InvalidAgentDefinition: An agent definition is invalid.
        LedgerUnavailable: No Redis could be started.
        NoSandbox: Commands could not be isolated.
        OtherSandbox: A worker runs already, with another sandbox.
    """
    seal_process()
    settings = load_settings()
    try:
        settings = attached_for_run(settings)
    except LedgerUnavailable:
        settings = _embedded_in_background(settings)
    client = JobClient.from_settings(settings)
    coordinator = create_coordinator(
        client, workspace=settings.workspace.absolute(), default_model=settings.model
    )
    return create_coordinator_app(coordinator, budgets_of(client.definitions[COORDINATOR]))


def _embedded_in_background(settings: Settings) -> Settings:
    """Start a Redis and a worker that run until this process ends; return the settings for them.

    ADK imports an agent inside or outside of a running loop, so they need a loop of their own. The
    operating system ends such children together with the thread that started them, so the thread
    has to live as long as they do.
    """
    with ExitStack() as stack:
        thread = stack.enter_context(start_blocking_portal())
        embedded = stack.enter_context(thread.wrap_async_context_manager(Embedded(settings)))
        atexit.register(stack.pop_all().close)
    return embedded.settings
