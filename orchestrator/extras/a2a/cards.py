"""Agent cards: what clients learn about the agents before they send a message."""

from __future__ import annotations

from collections.abc import Mapping

from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentSkill,
    APIKeySecurityScheme,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from a2a.utils.constants import PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0, TransportProtocol

from ...configuration.agent_definitions import AgentDefinitions
from ...version import VERSION
from .approval_requests import HITL_URI

PATH = "/a2a"
DEFAULT_AGENT = "general-purpose"
"""The agent for a message that names no agent: the same as for `POST /v1/jobs`."""
INPUT_MODES = (
    *("text/plain", "application/json", "application/octet-stream"),
    *("text/*", "image/*", "audio/*", "video/*", "application/pdf", "application/xml"),
    *("application/yaml", "application/zip", "application/gzip", "application/x-tar"),
)
"""The accepted media types: texts, data, and files of the workspace with any content. A file of
another type is sent as `application/octet-stream`."""
OUTPUT_MODES = ("text/plain", "application/json", "text/x-diff", "application/octet-stream")
DESCRIPTION = (
    "Isolated AI agents that work on files with a shell. A message is a job; its task has the "
    "answer, the patch and the changed files as artifacts. The metadata `fanout.agent` of a "
    "message names the agent that works on it."
)


def card(
    definitions: AgentDefinitions, base_url: str, agent: str | None = None, *, details: bool = False
) -> AgentCard:
    """Return the card of all agents, or of one.

    All its addresses have the origin of the card: ADK's clients refuse others.

    Args:
        definitions: The agents.
        base_url: The origin of the service.
        agent: The agent, whose definition exists; None: the card of the service.
        details: Whether to include details for authenticated callers: models, and delegation.
    """
    path = PATH if agent is None else f"{PATH}/agents/{agent}"
    shown = {agent: definitions[agent]} if agent else dict(sorted(definitions.items()))
    return AgentCard(
        name="fanout" if agent is None else f"fanout {agent}",
        description=DESCRIPTION if agent is None else definitions[agent].description,
        version=VERSION,
        supported_interfaces=_interfaces(f"{base_url}{path}"),
        capabilities=AgentCapabilities(
            streaming=True,
            push_notifications=True,
            extended_agent_card=True,
            extensions=[
                AgentExtension(
                    uri=HITL_URI,
                    description="Approvals of tool calls as typed data, those of sub-agents too.",
                )
            ],
        ),
        security_schemes=_security_schemes(),
        security_requirements=[
            SecurityRequirement(schemes={name: StringList()}) for name in _security_schemes()
        ],
        default_input_modes=INPUT_MODES,
        default_output_modes=OUTPUT_MODES,
        skills=_skills(shown, details=details),
    )


def _interfaces(url: str) -> list[AgentInterface]:
    """Return the addresses; clients prefer the first one."""
    return [
        AgentInterface(url=url, protocol_binding=binding, protocol_version=protocol)
        for protocol in (PROTOCOL_VERSION_1_0, PROTOCOL_VERSION_0_3)
        for binding in (TransportProtocol.JSONRPC.value, TransportProtocol.HTTP_JSON.value)
    ]


def _security_schemes() -> Mapping[str, SecurityScheme]:
    return {
        "bearer": SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="bearer")),
        "api_key": SecurityScheme(
            api_key_security_scheme=APIKeySecurityScheme(location="header", name="X-API-Key")
        ),
    }


def _skills(definitions: Mapping[str, object], *, details: bool) -> list[AgentSkill]:
    skills = []
    for name, definition in definitions.items():
        tags = ["agent"]
        if details:
            model = getattr(definition, "model", None)
            tags += [f"model:{model}"] if isinstance(model, str) else []
            tags += [f"delegates-to:{one}" for one in getattr(definition, "subagents", ()) or ()]
        description = str(getattr(definition, "description", "")) or name
        skills.append(AgentSkill(id=name, name=name, description=description, tags=tags))
    return skills
