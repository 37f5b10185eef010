"""The settings that a worker and its dashboard start with, and why one does not start."""

from __future__ import annotations

import sys

from fanout.orchestrator.configuration.agent_definitions import AgentDefinitions
from fanout.orchestrator.configuration.settings import InvalidSetting, Settings, load_settings
from fanout.orchestrator.jobs.policy import AdmissionPolicy

from .supervisor import EXIT_USAGE


def load_worker_settings() -> tuple[Settings, str]:
    """Return the settings and the URL of the Redis that a worker needs.

    Raises:
        SystemExit: They are not usable; the reason is printed to stderr.
    """
    try:
        settings = load_settings()
    except InvalidSetting as error:
        raise startup_error(str(error), EXIT_USAGE) from None
    if settings.redis_url is None:
        raise startup_error(
            "FANOUT_REDIS_URL is not set: a worker needs the Redis that its parents use.",
            EXIT_USAGE,
        )
    return settings, settings.redis_url


def startup_error(reason: str, exit_code: int) -> SystemExit:
    """Print why the worker does not start, and return the exception that ends it."""
    print(reason, file=sys.stderr)  # noqa: T201 - logging is set up later
    return SystemExit(exit_code)


def admission_policy(settings: Settings, definitions: AgentDefinitions) -> AdmissionPolicy:
    """Return the limits of concurrent jobs from this worker's settings and definitions."""
    return AdmissionPolicy(
        tree_jobs=settings.limits.tree_jobs,
        tenant_jobs=settings.limits.tenant_jobs,
        tenants=settings.tenants,
        storage=settings.storage.shares(),
        approvers=settings.approvers,
        agents={
            name: agent.max_running for name, agent in definitions.items() if agent.max_running
        },
    )
