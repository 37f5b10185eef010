"""The factory of deep agents: ADK agents with file tools, a shell, a plan and instructions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.context_cache_config import ContextCacheConfig
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from pydantic import BaseModel

from fanout.orchestrator.approvals import InterruptOn, merge_policies
from fanout.orchestrator.deep_agent.approval.gate import ApprovalFlow, ApprovalGate
from fanout.orchestrator.deep_agent.backends.artifacts import with_artifacts
from fanout.orchestrator.deep_agent.backends.protocol import Backend, BackendFactory, Shell
from fanout.orchestrator.deep_agent.backends.state import StateBackend
from fanout.orchestrator.deep_agent.base_instructions import BaseInstructions
from fanout.orchestrator.deep_agent.context.eviction import Eviction
from fanout.orchestrator.deep_agent.context.summarization import Summarization, SummarizationConfig
from fanout.orchestrator.deep_agent.deep_llm_agent import DeepLlmAgent
from fanout.orchestrator.deep_agent.delegation.child_run import resumable_app
from fanout.orchestrator.deep_agent.delegation.deferred import DeferredResults
from fanout.orchestrator.deep_agent.delegation.inheritance import AgentTool, Inheritance
from fanout.orchestrator.deep_agent.delegation.roster import SubAgentSpec, tool_name
from fanout.orchestrator.deep_agent.delegation.subagents import DelegationStyle, Subagents
from fanout.orchestrator.deep_agent.guards.budget import Budget
from fanout.orchestrator.deep_agent.guards.budget_plugin import BudgetFactory, BudgetPlugin
from fanout.orchestrator.deep_agent.guards.dangling_calls import DanglingCalls
from fanout.orchestrator.deep_agent.guards.loop_guard import LoopGuard
from fanout.orchestrator.deep_agent.guards.replies import OutputCheck, ReplyRepair, ToolErrors
from fanout.orchestrator.deep_agent.guards.structured_output import OutputSchema
from fanout.orchestrator.deep_agent.inbox import Inbox, Messages
from fanout.orchestrator.deep_agent.knowledge.memory import MemoryFiles
from fanout.orchestrator.deep_agent.knowledge.skills import Skills
from fanout.orchestrator.deep_agent.middleware import BackendSource, Middleware, callbacks
from fanout.orchestrator.deep_agent.models.rate_limiter import RateLimiter
from fanout.orchestrator.deep_agent.models.resolve import resolve_model
from fanout.orchestrator.deep_agent.names import agent_identifier
from fanout.orchestrator.deep_agent.tools.execute import ExecuteTool
from fanout.orchestrator.deep_agent.tools.filesystem import FilesystemTools
from fanout.orchestrator.deep_agent.tools.images import ImagesInView
from fanout.orchestrator.deep_agent.tools.todos import TodoTools
from fanout.orchestrator.deep_agent.toon import Tables

DEFAULT_MODEL = "gemini-2.5-flash"


def create_deep_agent(
    model: str | BaseLlm = DEFAULT_MODEL,
    tools: Sequence[AgentTool] | None = None,
    *,
    instruction: str | None = None,
    subagents: Sequence[SubAgentSpec | LlmAgent] | None = None,
    delegation: DelegationStyle = "task",
    skills: Sequence[str] | None = None,
    memory: Sequence[str] | None = None,
    output_schema: Mapping[str, Any] | type[BaseModel] | None = None,
    backend: Backend | BackendFactory | None = None,
    middleware: Sequence[Middleware] = (),
    interrupt_on: InterruptOn | None = None,
    inherited_interrupt_on: InterruptOn | None = None,
    built_in_tools: Collection[str] | None = None,
    summarization: SummarizationConfig | None = None,
    name: str = "deep_agent",
    description: str = "",
    is_subagent: bool = False,
    inbox: Messages | None = None,
    fatal_errors: tuple[type[Exception], ...] = (),
    rate_limiter: RateLimiter | None = None,
) -> LlmAgent:
    """Return an ADK agent with the built-in tools, for any ADK Runner.

    Args:
        model: A name for `resolve_model`, or an ADK model.
        tools: More tools, as ADK takes them; async ones, because a plain function blocks the event
            loop. A tool that is a Middleware, such as McpTools, is used as one.
        instruction: The agent's own prompt; it is taken literally, braces included.
        subagents: The agents that it may delegate to in this process: specifications or ready
            agents; a general-purpose one is added. No delegation when None.
        delegation: One `task` tool for all of them, or one tool for each (`agent_tools`).
        skills: Folders of the backend that are skills or contain skills; later ones win.
        memory: Paths of AGENTS.md files on the backend, in the order in which they are shown.
        output_schema: The schema of the final message; an invalid one is returned to the model
            once.
        backend: The agent's files, or a function that finds them in the session's state; the state
            itself when not given.
        middleware: Abilities of your own, in order; their hooks are called after the harness's own
            checks and before a person is asked to approve a call.
        interrupt_on: Tools that a person approves first: true, or the decisions to offer.
        inherited_interrupt_on: A parent's policy; the stricter of the two applies to each tool.
        built_in_tools: The names of the built-in tools to have; all that the backend supports when
            not given.
        summarization: When and how a long conversation is summarized; defaults when not given.
        name: Converted to an identifier, as ADK requires: `general-purpose` becomes
            `general_purpose`.
        description: The description for other agents.
        is_subagent: Another agent, not a person, reads the result.
        inbox: The source of messages to the agent while it works.
        fatal_errors: Exceptions of tools that end the run; all others become error results.
        rate_limiter: What each request to a model that is given by name waits for, also for
            summaries.

    Raises:
        ModelNotConfigured: A model's name is unknown, or its key or package is missing.
        ValueError: Another argument is invalid; ModelNotConfigured is a subclass.
    """
    tools = tools or ()
    schema = OutputSchema(output_schema) if output_schema is not None else None
    summarization = summarization or SummarizationConfig()
    backend_of = _backend_source(backend, summarization.history_path_prefix)
    root = "/" if backend is None or callable(backend) else backend.search_root
    files = FilesystemTools(backend_of, root=root)
    llm = _resolved(model, name, rate_limiter)
    other = summarization.model
    summarizer = None if other is None else _resolved(other, name, rate_limiter)
    built_in: list[Middleware] = [
        TodoTools(),
        files,
        Summarization(summarization, llm, summarizer, _agent_files(backend)),
    ]
    if isinstance(backend, Shell):
        built_in.append(ExecuteTool(backend))
    chosen = _chosen(built_in, built_in_tools)
    delegating: list[Subagents] = []
    if subagents is not None:
        inherited = Inheritance(
            create=create_deep_agent,
            model=model,
            tools=tools,
            built_in_tools={tool.name for tool in chosen},
            interrupt_on=merge_policies(inherited_interrupt_on or {}, interrupt_on or {}),
            delegation=delegation,
            summarization=summarization,
            fatal_errors=fatal_errors,
            rate_limiter=rate_limiter,
        )
        delegating = [inherited.subagents(subagents, _agent_files(backend), files.lock)]
    stack: list[Middleware] = [
        ApprovalFlow(),
        DeferredResults(),
        BaseInstructions(instruction, is_subagent=is_subagent and schema is None),
        ReplyRepair(),
        *([Inbox(inbox)] if inbox else []),
        DanglingCalls(),
        LoopGuard(),
        *built_in,
        *delegating,
        *(tool for tool in list[Any](tools) if isinstance(tool, Middleware)),
        *middleware,
        ImagesInView(),
        Tables(),
        *([OutputCheck(schema)] if schema else []),
        ToolErrors(fatal_errors),
        # Instructions that may change between two calls of the model come last.
        *([Skills(backend_of, skills)] if skills else []),
        *([MemoryFiles(backend_of, memory)] if memory else []),
        _approval_gate(
            interrupt_on or {},
            inherited_interrupt_on or {},
            [*built_in, *delegating, *middleware],
            tools,
        ),
        # It replaces results, and those after it do not get a result that is replaced.
        Eviction([tool.name for tool in chosen]),
    ]
    return DeepLlmAgent(
        name=agent_identifier(name),
        description=description,
        model=llm,
        instruction=_instruction_of(stack, frozenset(tool.name for tool in chosen)),
        tools=_unique(
            [
                *chosen,
                *_tools_of(middleware),
                *tools,
                *(tool for each in delegating for tool in each.all_tools()),
            ]
        ),
        **callbacks(stack),
    )


def create_deep_app(
    agent: LlmAgent,
    *,
    name: str = "fanout",
    plugins: Sequence[BasePlugin] = (),
    budget: Budget | BudgetFactory | None = None,
) -> App:
    """Return the agent as a resumable ADK app.

    Args:
        agent: The agent.
        name: The app's name.
        plugins: They come before the app's own, so a journal among them sees everything.
        budget: One budget for all runs of the app, or a factory of one for each run.
    """
    budgets = [BudgetPlugin(budget)] if budget is not None else []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\[EXPERIMENTAL\]")
        # It only enables caching: ResilientModel knows the limits of each model.
        caching = ContextCacheConfig()
    return resumable_app(name, agent, plugins=[*plugins, *budgets], context_cache_config=caching)


def _agent_files(backend: Backend | BackendFactory | None) -> BackendSource:
    """Return the agent's files, without the files that the harness stores for it."""
    if backend is None:
        return lambda context: StateBackend(context.state)
    if callable(backend):
        factory = backend
        return lambda context: factory(context.state)
    return lambda _: backend


def _resolved(model: str | BaseLlm, agent_name: str, rate_limiter: RateLimiter | None) -> BaseLlm:
    if isinstance(model, BaseLlm):
        return model
    return resolve_model(model, agent_name=agent_name, rate_limiter=rate_limiter)


def _backend_source(backend: Backend | BackendFactory | None, history_path: str) -> BackendSource:
    """Return the agent's files with those that the harness stores for it."""
    files_of = _agent_files(backend)
    if backend is None:
        return files_of
    return lambda context: with_artifacts(files_of(context), context.state, history=history_path)


def _chosen(built_in: Sequence[Middleware], names: Collection[str] | None) -> list[BaseTool]:
    tools = _tools_of(built_in)
    if names is None:
        return tools
    existing = {tool.name for tool in tools} | {"execute"}
    unknown = sorted(set(names) - existing)
    if unknown:
        raise ValueError(
            f"No such built-in tool: {', '.join(unknown)}. There are {', '.join(sorted(existing))}."
        )
    return [tool for tool in tools if tool.name in names]


def _tools_of(stack: Sequence[Middleware]) -> list[BaseTool]:
    return [tool for each in stack for tool in each.tools()]


def _unique(tools: Sequence[AgentTool]) -> list[AgentTool]:
    """Return the tools if their names are unique.

    Of two with the same name ADK would silently use the last, which might be the unguarded one.
    """
    names = [name for tool in tools if (name := tool_name(tool))]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Two tools are named {', '.join(twice)}; each needs a name of its own.")
    return list(tools)


def _approval_gate(
    interrupt_on: InterruptOn,
    inherited: InterruptOn,
    built_in: Sequence[Middleware],
    tools: Sequence[AgentTool],
) -> ApprovalGate:
    """Return an agent's approval gate.

    Its policy may name every built-in tool, because it applies to sub-agents too.
    """
    names = {tool.name for tool in _tools_of(built_in)} | {"execute"}
    single = [tool for tool in tools if not isinstance(tool, BaseToolset)]
    names |= {tool.name if isinstance(tool, BaseTool) else tool.__name__ for tool in single}
    return ApprovalGate(interrupt_on, inherited, known=names, more_later=len(single) < len(tools))


def _instruction_of(
    stack: Sequence[Middleware], tools: frozenset[str]
) -> Callable[[ReadonlyContext], Any]:
    """Return a function for ADK that joins the middleware's instructions.

    In a string ADK would replace `{name}` from the session's state, and fail on JSON.
    """

    async def provide(context: ReadonlyContext) -> str:
        texts = [await each.instruction(context, tools) for each in stack]
        return "\n".join(text for text in texts if text)

    return provide
