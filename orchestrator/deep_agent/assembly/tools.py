"""An agent's tools, checked before a model sees them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset

from fanout.orchestrator.approvals import InterruptOn
from fanout.orchestrator.deep_agent.approval.gate import ApprovalGate
from fanout.orchestrator.deep_agent.delegation.inheritance import AgentTool
from fanout.orchestrator.deep_agent.delegation.roster import tool_name
from fanout.orchestrator.deep_agent.middleware import Middleware


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


def unique_tools(tools: Sequence[AgentTool]) -> list[AgentTool]:
    """Return the tools if their names are unique.

    Of two with the same name ADK would silently use the last, which might be the unguarded one.

    Raises:
        ValueError: Two tools have the same name.
    """
    names = [name for tool in tools if (name := tool_name(tool))]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        hint = " delegation=None leaves the built-in task out." if "task" in twice else ""
        raise ValueError(
            f"Two tools are named {', '.join(twice)}; each needs a name of its own.{hint}"
        )
    return list(tools)


def approval_gate(
    interrupt_on: InterruptOn,
    inherited: InterruptOn,
    built_in: Sequence[Middleware],
    tools: Sequence[AgentTool],
) -> ApprovalGate:
    """Return an agent's approval gate.

    Its policy may name every built-in tool, because it applies to sub-agents too.
    """
    names = {tool.name for tool in tools_of(built_in)} | {"execute"}
    single = [tool for tool in tools if not isinstance(tool, BaseToolset)]
    names |= {tool.name if isinstance(tool, BaseTool) else tool.__name__ for tool in single}
    return ApprovalGate(interrupt_on, inherited, known=names, more_later=len(single) < len(tools))


def delegates(tool: AgentTool) -> bool:
    """Return whether a toolset has tools of its own that delegate, such as `task`."""
    return bool(getattr(tool, "delegates", False))
