"""Where the harness keeps what would fill a model's context.

In the session, beside the agent's files.

State deltas are journaled, so artifacts survive a crash, and they never appear in a workspace's
changes.
"""

from __future__ import annotations

from orchestrator.deep_agent.backends.composite import CompositeBackend, composite
from orchestrator.deep_agent.backends.protocol import Backend
from orchestrator.deep_agent.backends.state import SessionState, StateBackend

LARGE_TOOL_RESULTS = "/large_tool_results"
"""Tool results that were too long for the context."""

CONVERSATION_HISTORY = "/conversation_history"
"""Messages that a summary replaced."""


def with_artifacts(backend: Backend, state: SessionState) -> CompositeBackend:
    """The agent's files with both artifact folders, for its file tools.

    The shell does not see those.
    """
    folders = (LARGE_TOOL_RESULTS, CONVERSATION_HISTORY)
    return composite(
        backend, {folder: StateBackend(state, search_root=folder) for folder in folders}
    )
