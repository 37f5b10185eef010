"""The settings that a worker and its dashboard start with, and why one does not start."""

from __future__ import annotations

import sys

from fanout.orchestrator.configuration.settings import InvalidSetting, Settings, load_settings

EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_NOT_ALLOWED = 4


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
