"""The sub-agents of an agent: their specifications, names and limits."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Required, TypedDict

from google.adk.models.base_llm import BaseLlm
from google.adk.tools.base_tool import BaseTool
from google.adk.workflow import BaseNode

from ..permissions import Permission
from ..prompts import FORKED_NOTE, GENERAL_PURPOSE_DESCRIPTION
from ..structured_output import OutputType

MAX_DEPTH = 3
"""Levels of sub-agents below an agent: deeper trees multiply costs and lose the original task."""

ABANDON_SECONDS = 2.0
"""How long a sub-agent that was stopped may take to end, after which it is left behind: enough to
kill a command and its processes on a busy machine."""

PARENTS_MODEL = "inherit"
"""In place of a model's name: that of the parent."""

GENERAL_PURPOSE = "general-purpose"


def agent_identifier(name: str) -> str:
    """Return the name as an identifier other than `user`, which ADK reserves."""
    identifier = re.sub(r"\W", "_", name, flags=re.ASCII)
    if not identifier or identifier[0].isdigit() or identifier == "user":
        return f"agent_{identifier}"
    return identifier


@dataclass(frozen=True, kw_only=True)
class SubAgentLimits:
    """The limits of the sub-agents below one agent, which they hand down to their own.

    Raises:
        ValueError: A limit is not above zero.
    """

    max_concurrent: int = 8
    """Children of one agent that run at the same time; others wait in order. A few agents already
    reach a provider's rate limit, and each holds its conversation in memory."""
    timeout_seconds: float | None = 300.0
    """How long a task may take for which the model names no limit; None for no limit. Five minutes
    are dozens of steps, and one that hangs would otherwise block its parent for ever."""
    tasks_timeout_seconds: float | None = 600.0
    """How long one call of `tasks` may take, waiting for a free place included; None for no limit.
    Twice that of one task, because a second round of tasks may have to wait for the first."""

    def __post_init__(self) -> None:
        """Reject what is not above zero."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{field.name} is {value}: it has to be above zero.")


class SubAgentSpec(TypedDict, total=False):
    """A sub-agent's specification.

    Omitted values are its parent's, except `skills`, `output_schema` and `subagents`: it has none.
    """

    name: Required[str]
    description: Required[str]
    """When to choose it, for the parent."""
    system_prompt: str
    tools: Sequence[Any]
    """Its tools, in place of the built-in ones; without them it has its parent's built-in ones."""
    built_in_tools: Collection[str]
    """The names of its built-in tools; with `tools` it has none that are not named here."""
    model: str | BaseLlm
    """Its parent's when omitted, or `inherit`, as in the definitions of other harnesses."""
    skills: Sequence[str]
    permissions: Sequence[Permission]
    """Rules for files and commands, besides its parent's, which always hold."""
    interrupt_on: Mapping[str, Any]
    """Added to its parent's policy, which always holds."""
    output_schema: OutputType
    context: Literal["isolated", "fork"]
    """`fork`: it sees its parent's conversation up to the call, as copies, and pays its input
    tokens at each of its steps. Otherwise it sees only its task. Only the specification decides
    this, never a model."""
    subagents: Sequence[SubAgentSpec | BaseNode]
    """The agents that it may call; none when omitted."""


@dataclass(frozen=True)
class RosterMember:
    """A sub-agent that may be called."""

    name: str
    description: str
    made: SubAgentSpec | BaseNode
    output_schema: OutputType | None = None
    """The schema of its last message."""
    forks: bool = False
    """Whether it sees its parent's conversation."""


def tool_name(tool: Any) -> str:
    """Return the name of a tool for the model; empty for a toolset, whose tools are known later."""
    return str(tool.name if isinstance(tool, BaseTool) else getattr(tool, "__name__", ""))


def inherited_built_in_tools(spec: SubAgentSpec, inherited: Collection[str]) -> Collection[str]:
    """Return the names of a sub-agent's built-in tools.

    Args:
        spec: Its specification.
        inherited: Those of its parent.
    """
    return spec.get("built_in_tools", () if "tools" in spec else inherited)


def make_roster(
    subagents: Sequence[SubAgentSpec | BaseNode], taken: Collection[str]
) -> dict[str, RosterMember]:
    """Return the sub-agents by their names as identifiers, a general-purpose one included.

    Args:
        subagents: Specifications or ready agents.
        taken: Names that are not available.

    Raises:
        ValueError: A specification is invalid, or a name is taken.
    """
    members: dict[str, RosterMember] = {}
    for member in map(_as_member, subagents):
        key = agent_identifier(member.name)
        if key in members:
            raise ValueError(
                f"Two sub-agents are named {member.name}; each needs a name of its own."
            )
        if key in {*taken, "task", "tasks"}:
            raise ValueError(
                f"The sub-agent {member.name} has the name of a tool; choose another one."
            )
        members[key] = member
    general = SubAgentSpec(name=GENERAL_PURPOSE, description=GENERAL_PURPOSE_DESCRIPTION)
    members.setdefault(agent_identifier(GENERAL_PURPOSE), _as_member(general))
    return members


def _as_member(made: SubAgentSpec | BaseNode) -> RosterMember:
    if isinstance(made, BaseNode):
        return RosterMember(made.name, made.description, made)
    known = SubAgentSpec.__annotations__
    unknown = sorted(set(made) - set(known))
    if unknown:
        raise ValueError(f"A sub-agent has no {', '.join(unknown)}; it has {', '.join(known)}.")
    if not str(made.get("name") or "").strip() or not str(made.get("description") or "").strip():
        raise ValueError("A sub-agent needs a name and a description.")
    context = made.get("context", "isolated")
    if context not in {"isolated", "fork"}:
        raise ValueError(f"The context of {made['name']} is isolated or fork, not {context}.")
    forks = context == "fork"
    description = f"{made['description']} {FORKED_NOTE}" if forks else made["description"]
    return RosterMember(made["name"], description, made, made.get("output_schema"), forks)
