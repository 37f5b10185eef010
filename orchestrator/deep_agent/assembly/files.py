"""How an agent's files and its shell are found for a context of ADK."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fanout.orchestrator.deep_agent.backends.protocol import Backend, BackendFactory, Shell
from fanout.orchestrator.deep_agent.backends.state import StateBackend
from fanout.orchestrator.deep_agent.context.eviction import with_artifacts
from fanout.orchestrator.deep_agent.middleware import BackendSource
from fanout.orchestrator.deep_agent.permissions.gate import PermissionGate


@dataclass(frozen=True)
class AgentFiles:
    """The files of one agent, found anew for each call of a tool."""

    unchecked: BackendSource
    """Without the agent's rules, for sub-agents, who have them too."""
    own: BackendSource
    """Without the folders that the harness stores for the agent."""
    shown: BackendSource
    """With these folders, for the file tools."""
    may_execute: bool
    """Whether there is a shell; True for a factory, of which only a call can tell."""


def agent_files(
    backend: Backend | BackendFactory | None, history_path: str, gate: PermissionGate
) -> AgentFiles:
    """Return how an agent's files are found.

    Args:
        backend: The files, a function that finds them in the session's state, or None for the
            state itself.
        gate: Keeps the agent's rules.
        history_path: The folder of the messages that a summary replaced.
    """
    if backend is None:
        in_state: BackendSource = lambda context: StateBackend(context.state)  # noqa: E731 - typed
        allowed: BackendSource = lambda context: gate.files(in_state(context), context)  # noqa: E731 - typed
        return AgentFiles(in_state, allowed, allowed, may_execute=False)
    unchecked = _source(backend)

    def own(context: Any) -> Backend:
        return gate.files(unchecked(context), context)

    return AgentFiles(
        unchecked,
        own,
        lambda context: with_artifacts(own(context), context.state, history=history_path),
        may_execute=callable(backend) or isinstance(backend, Shell),
    )


def _source(backend: Backend | BackendFactory) -> BackendSource:
    if callable(backend):
        factory = backend
        return lambda context: factory(context.state)
    return lambda _: backend
