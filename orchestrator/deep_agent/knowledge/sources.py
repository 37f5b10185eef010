"""Access to the files that are put into an agent's instruction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.adk.agents.readonly_context import ReadonlyContext

from fanout.orchestrator.deep_agent.backends import paths
from fanout.orchestrator.deep_agent.backends.protocol import Backend
from fanout.orchestrator.deep_agent.backends.state import DictState
from fanout.orchestrator.deep_agent.failures import ToolMistake
from fanout.orchestrator.deep_agent.middleware import BackendSource

MISSING = (FileNotFoundError, NotADirectoryError)
"""A backend's errors for a missing source, which is no fault: not every project has one."""


@dataclass(frozen=True)
class _Reading:
    """The context for a `BackendSource`: ADK's read-only context has a state without `to_dict`."""

    state: DictState


def checked_sources(sources: Sequence[str]) -> tuple[str, ...]:
    """Return the normalised paths in order, without duplicates.

    Raises:
        ValueError: A path is invalid.
    """
    try:
        return tuple(dict.fromkeys(paths.checked(source) for source in sources))
    except ToolMistake as mistake:
        raise ValueError(str(mistake)) from None


def files_to_read(backend_of: BackendSource, context: ReadonlyContext) -> Backend:
    """Return the agent's current files, for reading only: changes would be lost."""
    return backend_of(_Reading(DictState(context.state)))
