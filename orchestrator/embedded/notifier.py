"""Starts the process that sends notifications, as one of the services of a state folder."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from pydantic import SecretStr

from ..client.notification_reader import NotificationReader
from ..client.state_folder import StateFolder
from ..configuration.settings import PREFIX, Settings
from ..process_secrets import session_environment
from .child_process import ChildProcess
from .python_process import keeper_environment, python_argv

STOP_SECONDS = 3.0
"""The time until the process is killed; the next one repeats what it was sending."""


async def start_notifier(settings: Settings) -> None:
    """Start the process, unless it runs or the ledger is not one of this machine's.

    Args:
        settings: The settings, with the URL of a Redis that runs.

    Raises:
        LedgerUnavailable: Redis does not respond.
    """
    if settings.notifications.on_finish:  # jobs that end before the process runs are not missed
        async with NotificationReader(str(settings.redis_url), settings.redis_prefix) as reader:
            await reader.notifications.expect_hook()
    with suppress(OSError):  # it runs already
        notifier_process(StateFolder(settings.state_dir)).start(
            python_argv("fanout.orchestrator.server.notifier_process"),
            env=_environment(settings),
            outlives_parent=True,
        )


def notifier_process(folder: StateFolder) -> ChildProcess:
    """Return the process of a state folder, whether it runs or not."""
    return ChildProcess(folder.path, "notifier")


def _environment(settings: Settings) -> dict[str, str]:
    """Return the environment: the settings of notifications, and what a desktop needs; no keys."""
    given = {
        f"{PREFIX}NOTIFICATIONS__{name.upper()}": _text(value)
        for name, value in settings.notifications
        if value
    }
    ours = {f"{PREFIX}REDIS_PREFIX": settings.redis_prefix, **given}
    return {**keeper_environment(settings), **session_environment(), **ours}


def _text(value: str | SecretStr | Path | tuple[str, ...]) -> str:
    """Return the value of a setting in the form of a variable."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return json.dumps(value) if isinstance(value, tuple) else str(value)
