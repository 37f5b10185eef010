"""Files that go into an agent's instruction.

Where they are and how they are reached before a model call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.adk.agents.readonly_context import ReadonlyContext

from orchestrator.deep_agent.backends import paths
from orchestrator.deep_agent.backends.protocol import Backend
from orchestrator.deep_agent.backends.state import DictState
from orchestrator.deep_agent.failures import ToolMistake
from orchestrator.deep_agent.part import BackendSource

MISSING = (FileNotFoundError, NotADirectoryError)
"""How a backend says that a source is not there, which is no fault: not every project has one."""


@dataclass(frozen=True)
class _Reading:
    """What a `BackendSource` is asked with.

    ADK's context of an instruction has a state without `to_dict`.
    """

    state: DictState


def checked_sources(sources: Sequence[str]) -> tuple[str, ...]:
    """The paths in their order, each once, normalised.

    ValueError for one that is no path of the agent's.
    """
    try:
        return tuple(dict.fromkeys(paths.checked(source) for source in sources))
    except ToolMistake as mistake:
        raise ValueError(str(mistake)) from None


def files_to_read(backend_of: BackendSource, context: ReadonlyContext) -> Backend:
    """The agent's files as they are now. They are for reading: what is written is not kept."""
    return backend_of(_Reading(DictState(context.state)))
