"""ADK's door: `adk web`, `adk run` and `adk api_server` find `app` and `root_agent` here.

Both are made when they are first asked for, with the settings of the environment. Without
FANOUT_REDIS_URL a Redis and a worker are started on this machine, for as long as the process lives.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from orchestrator.bootstrap import coordinator_app

if TYPE_CHECKING:
    from google.adk.agents import BaseAgent
    from google.adk.apps import App

    app: App
    root_agent: BaseAgent


@cache
def _app() -> App:
    return coordinator_app()


def __getattr__(name: str) -> Any:
    """`app` and `root_agent`, made at first use."""
    if name == "app":
        return _app()
    if name == "root_agent":
        return _app().root_agent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
