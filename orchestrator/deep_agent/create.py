"""The factory: a deep agent is an ADK agent with file tools, a shell, a plan and manners."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.apps import App, ResumabilityConfig
from google.adk.models.base_llm import BaseLlm
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from pydantic import BaseModel

from orchestrator.deep_agent.backends.protocol import Backend, BackendFactory, Shell
from orchestrator.deep_agent.backends.state import StateBackend
from orchestrator.deep_agent.budget import Budget, BudgetPlugin
from orchestrator.deep_agent.deep_llm_agent import DeepLlmAgent
from orchestrator.deep_agent.execute_tool import ExecuteTool
from orchestrator.deep_agent.filesystem_tools import FilesystemTools
from orchestrator.deep_agent.manners import Manners
from orchestrator.deep_agent.models import resolve_model
from orchestrator.deep_agent.part import BackendSource, Part, hooks
from orchestrator.deep_agent.replies import OutputCheck, ReplyRepair, ToolErrors
from orchestrator.deep_agent.structured_output import OutputSchema
from orchestrator.deep_agent.todos import TodoTools

DEFAULT_MODEL = "gemini-2.5-flash"

AgentTool = Callable[..., Any] | BaseTool | BaseToolset


def create_deep_agent(
    model: str | BaseLlm = DEFAULT_MODEL,
    tools: Sequence[AgentTool] | None = None,
    *,
    instruction: str | None = None,
    subagents: Sequence[Any] | None = None,
    skills: Sequence[str] | None = None,
    memory: Sequence[str] | None = None,
    output_schema: Mapping[str, Any] | type[BaseModel] | None = None,
    backend: Backend | BackendFactory | None = None,
    interrupt_on: Mapping[str, Any] | None = None,
    built_in_tools: Collection[str] | None = None,
    name: str = "deep_agent",
    description: str = "",
    is_subagent: bool = False,
    fatal_errors: tuple[type[Exception], ...] = (),
) -> LlmAgent:
    """An ADK agent with the built-in tools, for any ADK Runner.

    Args:
        model: A name for `resolve_model`, or an ADK model.
        tools: More tools, as ADK takes them; async ones, because a plain function stops the event loop.
        instruction: The agent's own prompt; it is taken literally, braces and all.
        subagents: Not in this version; neither are `skills`, `memory` and `interrupt_on`.
        skills: See `subagents`.
        memory: See `subagents`.
        output_schema: What the final message must be valid against; one that is not is sent back once.
        backend: Where the files are, or how to find out from the session's state; the state when not given.
        interrupt_on: See `subagents`.
        built_in_tools: The built-in tools to have, by name; all that the backend can serve when not given.
        name: Made an identifier, which ADK asks for: `general-purpose` becomes `general_purpose`.
        description: What other agents are told about it.
        is_subagent: Another agent, not a person, reads the result.
        fatal_errors: Exceptions of tools that end the run; all others become text for the model.

    Raises:
        ValueError: An argument cannot be used; ModelNotConfigured is one.
    """
    _refuse_later_parts(subagents=subagents, skills=skills, memory=memory, interrupt_on=interrupt_on)
    schema = OutputSchema(output_schema) if output_schema is not None else None
    backend_of = _backend_source(backend)
    built_in: list[Part] = [TodoTools(), FilesystemTools(backend_of, root=_root(backend))]
    if isinstance(backend, Shell):
        built_in.append(ExecuteTool(backend))
    parts: list[Part] = [
        Manners(instruction, is_subagent=is_subagent and schema is None),
        ReplyRepair(),
        *built_in,
        *([OutputCheck(schema)] if schema else []),
        ToolErrors(fatal_errors),
    ]
    chosen = _chosen(built_in, built_in_tools)
    return DeepLlmAgent(
        name=agent_identifier(name),
        description=description,
        model=resolve_model(model, agent_name=name) if isinstance(model, str) else model,
        instruction=_instruction_of(parts, frozenset(tool.name for tool in chosen)),
        tools=[*chosen, *(tools or ())],
        before_model_callback=hooks(parts, "before_model"),
        after_model_callback=hooks(parts, "after_model"),
        on_model_error_callback=hooks(parts, "on_model_error"),
        before_tool_callback=hooks(parts, "before_tool"),
        after_tool_callback=hooks(parts, "after_tool"),
        on_tool_error_callback=hooks(parts, "on_tool_error"),
        request_processors=[processor for part in parts for processor in part.request_processors()],
    )


def create_deep_app(
    agent: LlmAgent,
    *,
    name: str = "fanout",
    plugins: Sequence[BasePlugin] = (),
    budget: Budget | None = None,
) -> App:
    """The agent as a resumable ADK app; the caller's plugins go first, so a journal sees everything."""
    budgets = [BudgetPlugin(budget)] if budget is not None else []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\[EXPERIMENTAL\]")  # known, and pinned by our tests
        resumability = ResumabilityConfig(is_resumable=True)
    return App(
        name=name,
        root_agent=agent,
        plugins=[*plugins, *budgets],
        resumability_config=resumability,
    )


def agent_identifier(name: str) -> str:
    """A name as ADK wants it: an identifier, and not `user`."""
    identifier = re.sub(r"\W", "_", name, flags=re.ASCII)
    if not identifier or identifier[0].isdigit() or identifier == "user":
        return f"agent_{identifier}"
    return identifier


def _backend_source(backend: Backend | BackendFactory | None) -> BackendSource:
    if backend is None:
        return lambda context: StateBackend(context.state)
    if callable(backend):
        factory = backend
        return lambda context: factory(context.state)
    return lambda _: backend


def _root(backend: Backend | BackendFactory | None) -> str:
    return "/" if backend is None or callable(backend) else backend.search_root


def _chosen(parts: Sequence[Part], names: Collection[str] | None) -> list[BaseTool]:
    tools = [tool for part in parts for tool in part.tools()]
    if names is None:
        return tools
    existing = {tool.name for tool in tools} | {"execute"}
    unknown = sorted(set(names) - existing)
    if unknown:
        raise ValueError(
            f"No such built-in tool: {', '.join(unknown)}. There are {', '.join(sorted(existing))}."
        )
    return [tool for tool in tools if tool.name in names]


def _refuse_later_parts(**parts: Any) -> None:
    for name, value in parts.items():
        if value:
            raise ValueError(f"{name} is not in this version of the deep agent; leave it out.")


def _instruction_of(parts: Sequence[Part], tools: frozenset[str]) -> Callable[[ReadonlyContext], Any]:
    """The parts' words, together.

    ADK fills `{name}` in a string from the session's state and fails on JSON; a callable is left alone.
    """

    async def provide(context: ReadonlyContext) -> str:
        words = [await part.instruction(context, tools) for part in parts]
        return "\n".join(text for text in words if text)

    return provide
