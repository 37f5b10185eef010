"""The module in which `adk web`, `adk run` and `adk api_server` find `app` and `root_agent`.

Both are made when they are first used, with the settings of the environment. Without
FANOUT_REDIS_URL a Redis and a worker are started on this machine, which end with the process.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from fanout.orchestrator.bootstrap import coordinator_app

if TYPE_CHECKING:
    from google.adk.agents import BaseAgent
    from google.adk.apps import App

    app: App
    root_agent: BaseAgent


@cache
def _app() -> App:
    return coordinator_app()


def __getattr__(name: str) -> Any:
    """Return `app` or `root_agent`, made at first use.

    Raises:
        AttributeError: The module has no attribute of that name.
    """
    if name == "app":
        return _app()
    if name == "root_agent":
        return _app().root_agent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
