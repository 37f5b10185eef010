"""Access to the files that are put into an agent's instruction."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from google.adk.agents.readonly_context import ReadonlyContext

from fanout.orchestrator.deep_agent.backends import matching
from fanout.orchestrator.deep_agent.backends.protocol import Backend
from fanout.orchestrator.deep_agent.backends.state import DictState, state_copy
from fanout.orchestrator.deep_agent.failures import ToolMistake
from fanout.orchestrator.deep_agent.middleware import BackendSource

MISSING = (FileNotFoundError, NotADirectoryError)
"""A backend's errors for a missing source, which is no fault: not every project has one."""


@dataclass(frozen=True)
class _Reading:
    """The context for a `BackendSource`: a copy of the state of one of ADK's contexts."""

    state: DictState


class Sources:
    """Paths of knowledge on an agent's files; relative ones are below the files' own root.

    Args:
        paths: The paths in order; duplicates count once.

    Raises:
        ValueError: A path is invalid.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = tuple(paths)
        self.on("/")

    def on(self, root: str) -> tuple[str, ...]:
        """Return the normalised absolute paths.

        Args:
            root: The root of the agent's own files, which is known when they are found.

        Raises:
            ValueError: A path is invalid.
        """
        try:
            return tuple(dict.fromkeys(_absolute(path, root) for path in self._paths))
        except ToolMistake as mistake:
            raise ValueError(str(mistake)) from None


def _absolute(path: str, root: str) -> str:
    is_relative = (
        bool(path.strip()) and not path.startswith(("/", "~", "\\")) and ":" not in path[:2]
    )
    return matching.checked_path(posixpath.join(root, path) if is_relative else path)


def files_to_read(backend_of: BackendSource, context: ReadonlyContext) -> Backend:
    """Return the agent's current files, for reading only: changes would be lost."""
    return backend_of(_Reading(state_copy(context.state)))
