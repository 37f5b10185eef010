"""Folders for texts that are too long for a model's context, stored in the session's state.

Changes of the state are journaled, so these files survive a crash, and they never appear among a
workspace's changes.
"""

from __future__ import annotations

from fanout.orchestrator.deep_agent.backends.composite import CompositeBackend
from fanout.orchestrator.deep_agent.backends.protocol import Backend
from fanout.orchestrator.deep_agent.backends.state import SessionState, StateBackend

LARGE_TOOL_RESULTS = "/large_tool_results"
"""Tool results that were too long for the context."""

CONVERSATION_HISTORY = "/conversation_history"
"""Messages that a summary replaced."""


def is_artifact(path: str, history: str = CONVERSATION_HISTORY) -> bool:
    """Return whether a path is in a folder that the harness stores for itself.

    Args:
        path: An absolute path.
        history: The folder of messages that summaries replaced.
    """
    return any(path == folder or path.startswith(f"{folder}/") for folder in _folders(history))


def _folders(history: str) -> tuple[str, ...]:
    return (LARGE_TOOL_RESULTS, history)


def with_artifacts(
    backend: Backend, state: SessionState, *, history: str = CONVERSATION_HISTORY
) -> CompositeBackend:
    """Return the agent's files with both folders, for its file tools; the shell does not see them.

    Args:
        backend: The agent's files.
        state: The session's state, which stores the folders.
        history: The folder of messages that summaries replaced.
    """
    return CompositeBackend(
        backend,
        {folder: StateBackend(state, search_root=folder) for folder in _folders(history)},
        internal=True,
    )
