"""An agent's tools, checked before a model sees them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.genai import types

from fanout.orchestrator.approvals import InterruptOn, delegation_policy, merge_policies
from fanout.orchestrator.deep_agent.approval.gate import ApprovalGate
from fanout.orchestrator.deep_agent.delegation.inheritance import AgentTool
from fanout.orchestrator.deep_agent.delegation.roster import tool_name
from fanout.orchestrator.deep_agent.failures import AmbiguousTool
from fanout.orchestrator.deep_agent.middleware import Middleware
from fanout.orchestrator.deep_agent.web.search import ModelSearchTool


def tools_of(stack: Sequence[Middleware]) -> list[BaseTool]:
    """Return the tools of all middleware, in order."""
    return [tool for each in stack for tool in each.tools()]


def chosen_tools(built_in: Sequence[Middleware], names: Collection[str] | None) -> list[BaseTool]:
    """Return the built-in tools with these names; all of them for None.

    Raises:
        ValueError: There is no built-in tool of a name.
    """
    tools = tools_of(built_in)
    if names is None:
        return tools
    existing = {tool.name for tool in tools} | {"execute", "task"}
    unknown = sorted(set(names) - existing)
    if unknown:
        raise ValueError(
            f"No such built-in tool: {', '.join(unknown)}. There are {', '.join(sorted(existing))}."
        )
    return [tool for tool in tools if tool.name in names]


class UniqueNames(Middleware):
    """Checks that no two tools have the same name once the tools of toolsets are known.

    Of two ADK would silently use the last.
    """

    async def before_model(
        self, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> None:
        """Look at what the model is about to be offered.

        Raises:
            AmbiguousTool: Two tools have the same name.
        """
        del callback_context
        offered = [
            declared.name or ""
            for tool in llm_request.config.tools or ()
            if isinstance(tool, types.Tool)
            for declared in tool.function_declarations or ()
        ]
        if fault := _double(offered):
            raise AmbiguousTool(fault)


def unique_tools(tools: Sequence[AgentTool]) -> list[AgentTool]:
    """Return the tools if their names are unique.

    Of two with the same name ADK would silently use the last, which might be the unguarded one.

    Raises:
        ValueError: Two tools have the same name.
    """
    if fault := _double([name for tool in tools if (name := tool_name(tool))]):
        raise ValueError(fault)
    return list(tools)


def _double(names: Sequence[str]) -> str:
    """Return a sentence about names that are there twice; empty for none."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if not twice:
        return ""
    hint = " delegation=None leaves the built-in task out." if "task" in twice else ""
    return f"Two tools are named {', '.join(twice)}; each needs a name of its own.{hint}"


def check_for_model(tools: Sequence[AgentTool], model: BaseLlm) -> None:
    """Check that a model can do what the tools ask of it.

    Raises:
        ModelNotConfigured: The model has no search of its own, and a tool needs it.
    """
    for tool in tools:
        if isinstance(tool, ModelSearchTool):
            tool.check_for(model)


def approval_gate(
    interrupt_on: InterruptOn,
    inherited: InterruptOn,
    built_in: Sequence[Middleware],
    tools: Sequence[AgentTool],
) -> ApprovalGate:
    """Return an agent's approval gate.

    Its policy may name every built-in tool, because it applies to sub-agents too.
    """
    own = tools_of(built_in)
    names = {tool.name for tool in own} | {"execute"}
    single = [tool for tool in tools if not isinstance(tool, BaseToolset)]
    names |= {tool.name if isinstance(tool, BaseTool) else tool.__name__ for tool in single}
    agents = [tool_name(tool) for tool in (*own, *single) if delegates_to_one(tool)]
    inherited = merge_policies(
        {**inherited, **delegation_policy(inherited, agents)},
        delegation_policy(interrupt_on, agents),
    )
    return ApprovalGate(interrupt_on, inherited, known=names, more_later=len(single) < len(tools))


def delegates_to_one(tool: AgentTool) -> bool:
    """Return whether a tool stands for one sub-agent."""
    return bool(getattr(tool, "delegates_to_one", False))


def delegates(tool: AgentTool) -> bool:
    """Return whether a toolset has tools of its own that delegate, such as `task`."""
    return bool(getattr(tool, "delegates", False))
