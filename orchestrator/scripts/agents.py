"""The agents that a script may call."""

from __future__ import annotations

from ..configuration.agent_definitions import (
    GENERAL_PURPOSE,
    AgentDefinition,
    AgentDefinitions,
)
from ..jobs.spec import JobSpec


def script_agents(spec: JobSpec, definitions: AgentDefinitions) -> dict[str, str]:
    """Return the agents that a script may call, with their descriptions.

    The script of a run may call each agent that a job may name; that of an agent those that the
    agent may call.

    Args:
        spec: The script's job.
        definitions: The agents of the installation.

    Raises:
        UnknownAgent: The job's agent does not exist.
    """
    own = definitions[spec.agent]
    if spec.parent_id is not None:
        return callable_agents(own, definitions)
    return {one.name: one.description for one in definitions.values()}


def callable_agents(definition: AgentDefinition, definitions: AgentDefinitions) -> dict[str, str]:
    """Return the agents that an agent may call, with their descriptions.

    An agent that names no sub-agents may call none. The general-purpose agent has all tools, so an
    agent with a limited set of tools may call it only if it names it: otherwise it could have
    commands run that it may not run.
    """
    agents = definitions.callable_by(definition) if definition.subagents else {}
    if definition.tools is not None and GENERAL_PURPOSE not in definition.subagents:
        agents.pop(GENERAL_PURPOSE, None)
    return agents
