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

from ...approvals import InterruptOn
from ..backends.protocol import Backend
from ..context.summarization import SummarizationConfig
from ..knowledge import Notify
from ..loop_guard import LoopPolicy
from ..middleware import BackendSource
from ..models.rate_limiter import RateLimiter
from ..permissions import Permission
from .apply_changes import PathLock
from .child import InheritedApproval
from .roster import (
    GENERAL_PURPOSE,
    PARENTS_MODEL,
    SubAgentLimits,
    SubAgentSpec,
    agent_identifier,
    inherited_built_in_tools,
    make_roster,
    tool_name,
)
from .subagents import Subagents
from .task_tools import DelegationStyle
from .team import Team

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
    max_result_tokens: int
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
            members=make_roster(guarded, {*self.built_in_tools, *map(tool_name, self.tools)}),
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
        model = spec.get("model", PARENTS_MODEL)
        inherits = model == PARENTS_MODEL
        is_general = agent_identifier(spec["name"]) == agent_identifier(GENERAL_PURPOSE)
        return self.create(
            self.model if inherits else model,
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
            built_in_tools=inherited_built_in_tools(spec, self.built_in_tools),
            loops=self.loops,
            permissions=spec.get("permissions", ()),
            inherited_permissions=self.permissions,
            summarization=self.summarization if inherits else None,
            max_result_tokens=self.max_result_tokens,
            name=spec["name"],
            description=spec["description"],
            is_subagent=True,
            fatal_errors=self.fatal_errors,
            rate_limiter=self.rate_limiter,
            notify=self.notify,
        )
