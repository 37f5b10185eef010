"""The parent's side: decide, dispatch, wait, merge, serve.

Public names are loaded when they are first asked for: a program that only submits does not pay for
ADK.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.client import JobClient
    from orchestrator.coordinator.coordinator import create_coordinator
    from orchestrator.deep_agent.create import create_deep_agent
    from orchestrator.jobs.result import JobResult
    from orchestrator.jobs.spec import JobSpec

__all__ = ["JobClient", "JobResult", "JobSpec", "create_coordinator", "create_deep_agent"]

_HOMES = {
    "JobClient": "orchestrator.client",
    "JobResult": "orchestrator.jobs.result",
    "JobSpec": "orchestrator.jobs.spec",
    "create_coordinator": "orchestrator.coordinator.coordinator",
    "create_deep_agent": "orchestrator.deep_agent.create",
}


def __getattr__(name: str) -> Any:
    """Load a public name from the module that it lives in."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
