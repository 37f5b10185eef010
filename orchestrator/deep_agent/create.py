"""The factory of deep agents: ADK agents with file tools, a shell, a plan and instructions."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, ParamSpec

from google.adk.agents import LlmAgent
from google.adk.agents.context_cache_config import ContextCacheConfig
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_toolset import BaseToolset
from google.adk.workflow import BaseNode

from fanout.orchestrator.approvals import InterruptOn
from fanout.orchestrator.deep_agent.assembly import Assembly
from fanout.orchestrator.deep_agent.backends.protocol import Backend, BackendFactory
from fanout.orchestrator.deep_agent.budget import Budget, BudgetFactory, BudgetPlugin
from fanout.orchestrator.deep_agent.context.summarization import SummarizationConfig
from fanout.orchestrator.deep_agent.delegation.child import resumable_app
from fanout.orchestrator.deep_agent.delegation.inheritance import AgentTool
from fanout.orchestrator.deep_agent.delegation.roster import SubAgentLimits, SubAgentSpec
from fanout.orchestrator.deep_agent.delegation.task_tools import DelegationStyle
from fanout.orchestrator.deep_agent.execution import ExecutionChoice
from fanout.orchestrator.deep_agent.inbox import Messages
from fanout.orchestrator.deep_agent.knowledge import Notify
from fanout.orchestrator.deep_agent.loop_guard import LoopPolicy
from fanout.orchestrator.deep_agent.mcp.tools import McpTools
from fanout.orchestrator.deep_agent.middleware import Middleware
from fanout.orchestrator.deep_agent.models.facts import ModelProfile
from fanout.orchestrator.deep_agent.models.rate_limiter import RateLimiter
from fanout.orchestrator.deep_agent.permissions import Permission
from fanout.orchestrator.deep_agent.structured_output import OutputType
from fanout.orchestrator.shortening import one_line

Arguments = ParamSpec("Arguments")

DEFAULT_MODEL = "gemini-2.5-flash"


def create_deep_agent(
    model: str | BaseLlm = DEFAULT_MODEL,
    tools: Sequence[AgentTool] | None = None,
    *,
    instruction: str | None = None,
    subagents: Sequence[SubAgentSpec | BaseNode] | None = None,
    subagent_limits: SubAgentLimits | None = None,
    delegation: DelegationStyle | None = "task",
    skills: Sequence[str] | None = None,
    memory: Sequence[str] | None = None,
    output_schema: OutputType | None = None,
    backend: Backend | BackendFactory | None = None,
    execution: ExecutionChoice | None = None,
    middleware: Sequence[Middleware] = (),
    interrupt_on: InterruptOn | None = None,
    inherited_interrupt_on: InterruptOn | None = None,
    built_in_tools: Collection[str] | None = None,
    loops: LoopPolicy | None = None,
    permissions: Sequence[Permission] = (),
    inherited_permissions: Sequence[Sequence[Permission]] = (),
    summarization: SummarizationConfig | None = None,
    model_profile: ModelProfile | None = None,
    name: str = "deep_agent",
    description: str = "",
    is_subagent: bool = False,
    inbox: Messages | None = None,
    fatal_errors: tuple[type[Exception], ...] = (),
    rate_limiter: RateLimiter | None = None,
    notify: Notify | None = None,
) -> LlmAgent:
    """Return an ADK agent with the built-in tools, for any ADK Runner.

    Args:
        model: A name for `resolve_model`, or an ADK model, which gets the same retries.
        tools: More tools, as ADK takes them; plain functions run in threads (`in_own_loop` does the
            same for an async one that blocks). A tool that is a Middleware, such as McpTools, is
            used as one.
        instruction: The agent's own prompt; it is taken literally, braces included.
        subagents: The agents that it may delegate to in this process: specifications or ready
            agents, which may be any node of ADK. A general-purpose one is added, which has what
            this agent has; it is the only one when None. With a toolset that delegates, such as
            TaskToolset, or with built-in tools chosen without `task`, None means no sub-agents.
        subagent_limits: How many of them run at once and how long; defaults when not given.
        delegation: One `task` tool for all of them, one tool for each (`agent_tools`), or None for
            an agent that does not delegate.
        skills: Folders of the backend that are skills or contain skills; later ones win. A relative
            path is below the root of the agent's own files.
        memory: Paths of AGENTS.md files on the backend, likewise, in the order in which they are
            shown.
        output_schema: The schema of the final message, as ADK takes it: a JSON Schema, a schema of
            Gemini, or a type such as a pydantic model, a dataclass, `list[Model]` or `dict`. A
            message that does not fit is returned to the model once.
        backend: The agent's files, or a function that finds them in the session's state, which is
            called for each call of a tool; the state itself when not given. With files that have a
            shell, the agent has `execute`.
        execution: Where commands and code run, if not in the backend's shell: `local`, a shell of
            this machine, in the backend's directory or the working directory; `heimdall` or an
            `ExecutionServer`, an MCP server with tools of its own. It is not a sandbox: a server
            with a command and the local shell may do whatever this process's user may do.
        middleware: Abilities of your own, in order; their hooks are called after the harness's own
            checks and before a person is asked to approve a call.
        interrupt_on: Tools that a person approves first: true, or the decisions to offer.
        inherited_interrupt_on: A parent's policy; the stricter of the two applies to each tool.
        built_in_tools: The names of the built-in tools to have; all that the backend supports when
            not given. `edit_file` stands for the edit tools of the model's profile.
        loops: How often the same call may be made in a row, by sub-agents too; defaults when not
            given.
        permissions: Rules for files and commands, of which the first that matches decides; what
            none matches is allowed. They hold under all tools, and for sub-agents. Rules for files
            beside a shell need one for execute as well.
        inherited_permissions: The rules of the agents that delegate to this one: the strictest of
            all lists applies.
        summarization: When and how a long conversation is summarized; defaults when not given.
        model_profile: The edit tools and the prompt for this model; from the table in
            `models/facts.py` when not given.
        name: Converted to an identifier, as ADK requires: `general-purpose` becomes
            `general_purpose`.
        description: The description for other agents.
        is_subagent: Another agent, not a person, reads the result.
        inbox: The source of messages to the agent while it works.
        fatal_errors: Exceptions of tools that end the run; all others become error results.
        rate_limiter: What each request to a model waits for, also for summaries.
        notify: Called with a sentence for the person who runs the agent: which skill or memory file
            is left out, and why. Each is logged as well.

    Raises:
        ModelNotConfigured: A model's name is unknown, or its package is missing. A missing key is a
            ModelDenied of the first request.
        ValueError: Another argument is invalid; ModelNotConfigured is a subclass.
    """
    given = locals()
    _check_kinds(given)
    return Assembly(create=create_deep_agent, **given).agent()


_TEXT = ((str,), "a text")
_LIST = ((Collection,), "a list")

_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "model": ((str, BaseLlm), "the name of a model, or a model of ADK"),
    **dict.fromkeys(("instruction", "name", "description"), _TEXT),
    **dict.fromkeys(("tools", "subagents", "skills", "memory", "middleware"), _LIST),
    **dict.fromkeys(("built_in_tools", "permissions", "inherited_permissions"), _LIST),
    "interrupt_on": ((Mapping,), "a mapping of tools to decisions"),
    "loops": ((LoopPolicy,), "a LoopPolicy"),
    "summarization": ((SummarizationConfig,), "a SummarizationConfig"),
}
"""What an argument has to be, where another type would fail much later, or be read as a list of
letters."""


def _check_kinds(given: Mapping[str, Any]) -> None:
    for name, (kinds, words) in _KINDS.items():
        value = given[name]
        is_letters = kinds is _LIST[0] and isinstance(value, (str, bytes, Mapping))
        if value is not None and (is_letters or not isinstance(value, kinds)):
            raise ValueError(f"{name} has to be {words}, not {one_line(repr(value), 80)}.")


Cleanup = Callable[[], Awaitable[None]]
"""Closes what an agent has opened."""


def _connected(
    create: Callable[Arguments, LlmAgent],
) -> Callable[Arguments, Awaitable[tuple[LlmAgent, Cleanup | None]]]:
    async def create_connected(
        *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> tuple[LlmAgent, Cleanup | None]:
        agent = await asyncio.to_thread(create, *args, **kwargs)
        toolsets = [tool for tool in agent.tools if isinstance(tool, BaseToolset)]

        async def cleanup() -> None:
            await asyncio.gather(*(toolset.close() for toolset in toolsets))

        try:
            for toolset in toolsets:
                if isinstance(toolset, McpTools):
                    await toolset.get_tools()
        except BaseException:
            await cleanup()
            raise
        return agent, cleanup if toolsets else None

    return create_connected


create_deep_agent_async = _connected(create_deep_agent)
"""As `create_deep_agent`, with the agent's MCP servers connected when it returns.

The second value closes them; it is None for an agent with nothing to close. A server that does not
start is a McpServerFailed.
"""


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
    return resumable_app(name, agent, plugins=[*plugins, *budgets], context_cache_config=_caching())


@cache
def _caching() -> ContextCacheConfig:
    """Return what enables caching, and only that: ResilientModel knows the limits of each model."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\[EXPERIMENTAL\]")
        return ContextCacheConfig()
