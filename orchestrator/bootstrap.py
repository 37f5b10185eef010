"""The composition root for ADK's commands: makes a coordinator's app from the settings."""

from __future__ import annotations

import atexit
from contextlib import ExitStack

from anyio.from_thread import start_blocking_portal
from google.adk.apps import App

from .adk.job_agent import JobAgent
from .client import JobClient
from .configuration.settings import Settings, load_settings
from .embedded.use import outliving
from .process_secrets import seal_process

APP_NAME = "orchestrator"
"""ADK expects an app's name to be that of its folder."""


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
    if settings.redis_url is None:
        settings = _embedded_in_background(settings)
    client = JobClient.from_settings(settings)
    model = {"model": settings.model} if "model" in settings.model_fields_set else {}
    agent = JobAgent(client, workspace=settings.workspace.absolute(), **model)
    return App(name=APP_NAME, root_agent=agent)


def _embedded_in_background(settings: Settings) -> Settings:
    """Start a Redis and a worker, if none run here, and return the settings for them.

    They outlive this process, so that its jobs continue, and end when they are no longer used; this
    process uses them until its end. ADK imports an agent inside or outside of a running loop, so
    they are started in a separate loop.
    """
    with ExitStack() as stack:
        thread = stack.enter_context(start_blocking_portal())
        embedded = stack.enter_context(thread.wrap_async_context_manager(outliving(settings)))
        atexit.register(stack.pop_all().close)
    return embedded.settings
