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
from google.adk.tools.tool_context import ToolContext
from pydantic import BaseModel

from orchestrator.deep_agent import prompts
from orchestrator.deep_agent.backends.protocol import Backend, BackendFactory, Shell
from orchestrator.deep_agent.backends.state import StateBackend
from orchestrator.deep_agent.budget import Budget, BudgetPlugin
from orchestrator.deep_agent.execute_tool import ExecuteTool
from orchestrator.deep_agent.filesystem_tools import FilesystemTools
from orchestrator.deep_agent.models import resolve_model
from orchestrator.deep_agent.replies import (
    answer_sent_back,
    check_output,
    explain_tool_error,
    send_back_malformed,
)
from orchestrator.deep_agent.structured_output import OutputSchema
from orchestrator.deep_agent.todos import TodoTools
from orchestrator.deep_agent.tool import MethodTool

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
    built_in = _chosen(_built_in_tools(backend), built_in_tools)
    root = "/" if backend is None or callable(backend) else backend.search_root
    text = prompts.instruction(
        instruction,
        tools=frozenset(tool.name for tool in built_in),
        root=root,
        is_subagent=is_subagent,
        schema=schema.json_schema if schema else None,
    )
    return LlmAgent(
        name=agent_identifier(name),
        description=description,
        model=resolve_model(model, agent_name=name) if isinstance(model, str) else model,
        instruction=_literally(text),
        tools=[*built_in, *(tools or ())],
        after_model_callback=[send_back_malformed, *([check_output(schema)] if schema else [])],
        before_tool_callback=answer_sent_back,
        on_tool_error_callback=explain_tool_error(fatal_errors),
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


def _built_in_tools(backend: Backend | BackendFactory | None) -> list[MethodTool]:
    def backend_of(tool_context: ToolContext) -> Backend:
        if backend is None:
            return StateBackend(tool_context.state)
        return backend(tool_context.state) if callable(backend) else backend

    files, todos = FilesystemTools(backend_of), TodoTools()
    methods: list[Callable[..., Any]] = [todos.write_todos, todos.read_todos]
    methods += [files.ls, files.read_file, files.write_file, files.edit_file, files.delete_file]
    methods += [files.glob, files.grep]
    if isinstance(backend, Shell):
        shell = backend
        methods.append(ExecuteTool(lambda _: shell).execute)
    return [MethodTool(method) for method in methods]


def _chosen(tools: list[MethodTool], names: Collection[str] | None) -> list[MethodTool]:
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


def _literally(text: str) -> Callable[[ReadonlyContext], str]:
    """ADK fills `{name}` in a string from the session's state and fails on JSON; a callable is left alone."""

    def provide(context: ReadonlyContext) -> str:
        del context
        return text

    return provide
