"""What sub-agents inherit from their parent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.workflow import BaseNode

from fanout.orchestrator.approvals import InterruptOn
from fanout.orchestrator.deep_agent.backends.protocol import Backend
from fanout.orchestrator.deep_agent.context.summarization import SummarizationConfig
from fanout.orchestrator.deep_agent.delegation.apply_changes import PathLock
from fanout.orchestrator.deep_agent.delegation.child import InheritedApproval
from fanout.orchestrator.deep_agent.delegation.roster import (
    GENERAL_PURPOSE,
    SubAgentLimits,
    SubAgentSpec,
    agent_identifier,
    built_in_tools_of,
    roster_of,
    tool_name,
)
from fanout.orchestrator.deep_agent.delegation.subagents import Subagents
from fanout.orchestrator.deep_agent.delegation.task_tools import DelegationStyle
from fanout.orchestrator.deep_agent.delegation.team import Team
from fanout.orchestrator.deep_agent.knowledge import Notify
from fanout.orchestrator.deep_agent.loop_guard import LoopPolicy
from fanout.orchestrator.deep_agent.middleware import BackendSource
from fanout.orchestrator.deep_agent.models.rate_limiter import RateLimiter
from fanout.orchestrator.deep_agent.permissions import Permission

AgentTool = Callable[..., Any] | BaseTool | BaseToolset
"""A tool as ADK takes it."""


@dataclass(frozen=True)
class Inheritance:
    """The values of sub-agents for what their specifications leave out."""

    create: Callable[..., LlmAgent]
    """`create_deep_agent`, which creates sub-agents too."""
    model: str | BaseLlm
    tools: Sequence[AgentTool]
    """Only for the general-purpose sub-agent; the others have the built-in ones."""
    built_in_tools: Collection[str]
    may_execute: bool
    """Whether the parent's files have a shell, or may have one."""
    interrupt_on: InterruptOn
    """Always applies, in addition to their own."""
    delegation: DelegationStyle
    limits: SubAgentLimits
    loops: LoopPolicy | None
    permissions: Sequence[Sequence[Permission]]
    """The rules of the parent and of those above it; they always hold as well."""
    summarization: SummarizationConfig | None
    """Only for sub-agents with the same model, because it may hold that model's window."""
    fatal_errors: tuple[type[Exception], ...]
    rate_limiter: RateLimiter | None
    notify: Notify | None

    def subagents(
        self, subagents: Sequence[SubAgentSpec | BaseNode], files: BackendSource, lock: PathLock
    ) -> Subagents:
        """Return the sub-agents as middleware of their parent.

        Args:
            subagents: Specifications or ready agents.
            files: The parent's files.
            lock: Held while a file of the parent is compared and written.

        Raises:
            ValueError: A specification is invalid, or a name is taken.
        """
        approval = InheritedApproval(self.interrupt_on)
        guarded = [
            approval.guarded(made) if isinstance(made, BaseNode) else made for made in subagents
        ]
        team = Team(
            members=roster_of(guarded, {*self.built_in_tools, *map(tool_name, self.tools)}),
            make=self._child,
            approval=approval,
            built_in_tools=self.built_in_tools,
            files=files,
            lock=lock,
            limits=self.limits,
            fatal_errors=self.fatal_errors,
        )
        return Subagents(team, self.delegation)

    def _child(self, spec: SubAgentSpec, files: Backend) -> LlmAgent:
        if "execute" in spec.get("built_in_tools", ()) and not self.may_execute:
            raise ValueError(
                f"The sub-agent {spec['name']} cannot have a shell: its parent's files have none. "
                "Leave execute out, or use a backend with a shell."
            )
        is_general = agent_identifier(spec["name"]) == agent_identifier(GENERAL_PURPOSE)
        return self.create(
            spec.get("model", self.model),
            spec.get("tools", self.tools if is_general else ()),
            instruction=spec.get("system_prompt"),
            subagents=spec.get("subagents"),
            subagent_limits=self.limits,
            delegation=self.delegation if "subagents" in spec else None,
            skills=spec.get("skills"),
            output_schema=spec.get("output_schema"),
            backend=files,
            interrupt_on=spec.get("interrupt_on"),
            inherited_interrupt_on=self.interrupt_on,
            built_in_tools=built_in_tools_of(spec, self.built_in_tools),
            loops=self.loops,
            permissions=spec.get("permissions", ()),
            inherited_permissions=self.permissions,
            summarization=None if "model" in spec else self.summarization,
            name=spec["name"],
            description=spec["description"],
            is_subagent=True,
            fatal_errors=self.fatal_errors,
            rate_limiter=self.rate_limiter,
            notify=self.notify,
        )
