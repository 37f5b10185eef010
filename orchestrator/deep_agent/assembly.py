"""Puts an agent together: its middleware in order, its tools, its instruction and its files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.workflow import BaseNode
from google.genai import types

from ..approvals import InterruptOn, delegation_policy, merge_policies
from ..shortening import one_line
from . import prompts
from .adk_internals import DeepLlmAgent
from .approval import ApprovalFlow, ApprovalGate
from .backends.protocol import Backend, BackendFactory, Shell
from .backends.state import StateBackend
from .context.eviction import Eviction, with_artifacts
from .context.summarization import Summarization, SummarizationConfig
from .dangling_calls import DanglingCalls
from .delegation.bounded_results import (
    LEAST_RESULT_TOKENS,
    MAX_RESULT_TOKENS,
    BoundedResults,
)
from .delegation.deferred import DeferredResults
from .delegation.inheritance import AgentTool, Inheritance
from .delegation.roster import (
    SubAgentLimits,
    SubAgentSpec,
    agent_identifier,
    tool_name,
)
from .delegation.subagents import Subagents
from .delegation.task_tools import DelegationStyle
from .execution import (
    ExecutionChoice,
    execution_tools,
    real_sources,
    with_local_shell,
)
from .failures import AmbiguousTool
from .inbox import Inbox, Messages
from .interruptible_tools import interruptible
from .knowledge import Notify
from .loop_guard import LoopGuard, LoopPolicy
from .memory import MemoryFiles
from .middleware import BackendSource, Middleware, callbacks
from .models.facts import (
    EDIT_TOOLS,
    EditTool,
    ModelProfile,
    choose_edit_tools,
    find_profile,
    takes_inline,
)
from .models.rate_limiter import RateLimiter
from .models.resolve import resilient, resolve_model
from .permissions import Permission, PermissionGate
from .skills import Skills
from .structured_output import OutputSchema, OutputType
from .tool import CheckedTool
from .tool_results import JsonResults
from .tools.execute import ExecuteTool
from .tools.filesystem import FilesystemTools
from .tools.images import ImagesInView
from .tools.todos import TodoTools
from .toon import Tables
from .unusable_replies import (
    OutputCheck,
    ReplyRepair,
    ToolErrors,
    ValidText,
)

DEFAULT_MODEL = "gemini-2.5-flash"

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


@dataclass(frozen=True)
class Assembly:
    """An ADK agent with the built-in tools, for any ADK Runner, and what it is made of.

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
            not given. `edit_file` means the edit tools of the model's profile.
        loops: How often the same call may be made in a row, by sub-agents too; defaults when not
            given.
        permissions: Rules for files and commands, of which the first that matches decides; what
            none matches is allowed. They hold under all tools, and for sub-agents. Rules for files
            together with a shell need one for execute as well.
        inherited_permissions: The rules of the agents that delegate to this one: the strictest of
            all lists applies.
        summarization: When and how a long conversation is summarized; defaults when not given.
        max_result_tokens: What the results of any number of tasks add to the next request at most;
            2,500 or more. Each whole result is in `/task_results`.
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

    model: str | BaseLlm = DEFAULT_MODEL
    tools: Sequence[AgentTool] | None = None
    _: KW_ONLY
    instruction: str | None = None
    subagents: Sequence[SubAgentSpec | BaseNode] | None = None
    subagent_limits: SubAgentLimits | None = None
    delegation: DelegationStyle | None = "task"
    skills: Sequence[str] | None = None
    memory: Sequence[str] | None = None
    output_schema: OutputType | None = None
    backend: Backend | BackendFactory | None = None
    execution: ExecutionChoice | None = None
    middleware: Sequence[Middleware] = ()
    interrupt_on: InterruptOn | None = None
    inherited_interrupt_on: InterruptOn | None = None
    built_in_tools: Collection[str] | None = None
    loops: LoopPolicy | None = None
    permissions: Sequence[Permission] = ()
    inherited_permissions: Sequence[Sequence[Permission]] = ()
    summarization: SummarizationConfig | None = None
    max_result_tokens: int = MAX_RESULT_TOKENS
    model_profile: ModelProfile | None = None
    name: str = "deep_agent"
    description: str = ""
    is_subagent: bool = False
    inbox: Messages | None = None
    fatal_errors: tuple[type[Exception], ...] = ()
    rate_limiter: RateLimiter | None = None
    notify: Notify | None = None

    def __post_init__(self) -> None:
        for name, (kinds, words) in _KINDS.items():
            value = getattr(self, name)
            is_letters = kinds is _LIST[0] and isinstance(value, (str, bytes, Mapping))
            if value is not None and (is_letters or not isinstance(value, kinds)):
                raise ValueError(f"{name} has to be {words}, not {one_line(repr(value), 80)}.")
        if self.max_result_tokens < LEAST_RESULT_TOKENS:
            raise ValueError(f"max_result_tokens has to be {LEAST_RESULT_TOKENS:,} or more.")

    def agent(self) -> LlmAgent:
        """Return the agent.

        Raises:
            ValueError: An argument is invalid; of a model, a ModelNotConfigured.
        """
        stack = self._stack()
        check_for_model([*self._own_tools, *join_tools(self.middleware)], self._llm)
        return DeepLlmAgent(
            name=agent_identifier(self.name),
            description=self.description,
            model=self._llm,
            instruction=_join_instructions(stack, frozenset(tool.name for tool in self._chosen)),
            tools=unique_tools(
                [
                    *self._chosen,
                    *map(interruptible, join_tools(self.middleware)),
                    *self._own_tools,
                    *(tool for each in self._delegation for tool in each.all_tools()),
                ]
            ),
            **callbacks(stack),
        )

    def _stack(self) -> list[Middleware]:
        """Return all middleware in the order in which their hooks are called."""
        return [
            ApprovalFlow(),
            ValidText(),
            DeferredResults(),
            self._permissions,
            BaseInstructions(
                self.instruction,
                is_subagent=self.is_subagent and self._schema is None,
                for_model=self._profile.instruction if self._has_models_edit_tools else "",
            ),
            UniqueNames(),
            ReplyRepair(),
            *([Inbox(self.inbox)] if self.inbox else []),
            DanglingCalls(),
            LoopGuard(self.loops),
            *self._built_in,
            *self._delegation,
            *(tool for tool in list[Any](self._own_tools) if isinstance(tool, Middleware)),
            *self.middleware,
            ImagesInView(),
            Tables(),
            *([OutputCheck(self._schema)] if self._schema else []),
            ToolErrors(self.fatal_errors),
            # Instructions that may change between two calls of the model come last.
            *self._knowledge(),
            approval_gate(
                self.interrupt_on or {},
                self.inherited_interrupt_on or {},
                [*self._built_in, *self._delegation, *self.middleware],
                self._own_tools,
            ),
            JsonResults(),
            BoundedResults(self.max_result_tokens, [tool.name for tool in self._chosen]),
            Eviction([tool.name for tool in self._chosen]),
        ]

    @cached_property
    def _own_tools(self) -> Sequence[AgentTool]:
        given = [*(self.tools or ()), *execution_tools(self.execution)]
        return [interruptible(tool) for tool in given]

    @cached_property
    def _schema(self) -> OutputSchema | None:
        return OutputSchema(self.output_schema) if self.output_schema is not None else None

    @cached_property
    def _files(self) -> AgentFiles:
        has_shell = self.execution == "local"
        backend = with_local_shell(self.backend) if has_shell else self.backend
        return agent_files(backend, self._summarization.history_path_prefix, self._permissions)

    @cached_property
    def _permissions(self) -> PermissionGate:
        gate = PermissionGate([*self.inherited_permissions, self.permissions])
        wanted = self.built_in_tools is None or "execute" in self.built_in_tools
        if wanted and (self.execution == "local" or isinstance(self.backend, Shell)):
            gate.check_shell()
        return gate

    def _sources(self, paths: Sequence[str] | None) -> Sequence[str]:
        is_local = self.execution == "local"
        return real_sources(paths, self.backend) if is_local else paths or ()

    def _knowledge(self) -> list[Middleware]:
        files, notify = self._files.shown, self.notify
        return [
            *([Skills(files, self._sources(self.skills), notify)] if self.skills else []),
            *([MemoryFiles(files, self._sources(self.memory), notify)] if self.memory else []),
        ]

    @cached_property
    def _file_tools(self) -> FilesystemTools:
        return FilesystemTools(
            self._files.shown,
            edit_tools=self._edit_tools,
            takes=partial(takes_inline, self._llm.model),
        )

    @cached_property
    def _profile(self) -> ModelProfile:
        return self.model_profile or find_profile(self._llm.model)

    @cached_property
    def _edit_tools(self) -> Sequence[EditTool]:
        return choose_edit_tools(self._profile, self.built_in_tools)

    @cached_property
    def _has_models_edit_tools(self) -> bool:
        return set(self._profile.edit_tools) <= set(self._edit_tools)

    @cached_property
    def _llm(self) -> BaseLlm:
        return self._resolved(self.model)

    @cached_property
    def _summarization(self) -> SummarizationConfig:
        return self.summarization or SummarizationConfig()

    @cached_property
    def _built_in(self) -> list[Middleware]:
        other = self._summarization.model
        summarizer = None if other is None else self._resolved(other)
        return [
            TodoTools(),
            self._file_tools,
            Summarization(self._summarization, self._llm, summarizer, self._files.own),
            *([ExecuteTool(self._files.own)] if self._files.may_execute else []),
        ]

    @cached_property
    def _chosen(self) -> list[BaseTool]:
        names = self.built_in_tools
        if names is not None:
            names = {*names, *self._edit_tools} - (set(EDIT_TOOLS) - set(self._edit_tools))
        return chosen_tools(self._built_in, names)

    @cached_property
    def _delegation(self) -> list[Subagents]:
        """The sub-agents, as one middleware; empty for an agent without."""
        if self.delegation is None:
            if self.subagents:
                raise ValueError(
                    "delegation=None leaves no way to call subagents: leave one of them out."
                )
            return []
        if self.subagents is None and not self._delegates_by_default:
            return []
        inherited = Inheritance(
            create=lambda *args, **kwargs: Assembly(*args, **kwargs).agent(),
            model=self.model,
            tools=self._own_tools,
            built_in_tools=self._inherited_tools,
            may_execute=self._files.may_execute,
            permissions=[*self.inherited_permissions, self.permissions],
            interrupt_on=merge_policies(self.inherited_interrupt_on or {}, self.interrupt_on or {}),
            delegation=self.delegation,
            limits=self.subagent_limits or SubAgentLimits(),
            loops=self.loops,
            summarization=self._summarization,
            max_result_tokens=self.max_result_tokens,
            fatal_errors=self.fatal_errors,
            rate_limiter=self.rate_limiter,
            notify=self.notify,
        )
        return [
            inherited.subagents(self.subagents or (), self._files.unchecked, self._file_tools.lock)
        ]

    @cached_property
    def _inherited_tools(self) -> set[str]:
        """The chosen tools; a sub-agent edits with those of its own model."""
        names = {tool.name for tool in self._chosen}
        own = set(self._edit_tools) <= set(self._profile.edit_tools) and bool(self._edit_tools)
        return (names - set(EDIT_TOOLS)) | {"edit_file"} if own else names

    @cached_property
    def _delegates_by_default(self) -> bool:
        wanted = self.built_in_tools is None or "task" in self.built_in_tools
        return wanted and not any(map(delegates, self._own_tools))

    def _resolved(self, model: str | BaseLlm) -> BaseLlm:
        if isinstance(model, BaseLlm):
            return resilient(model, rate_limiter=self.rate_limiter)
        # A key may be set after the agent was made, so its lack is an error of a request.
        return resolve_model(
            model, agent_name=self.name, rate_limiter=self.rate_limiter, needs_key=False
        )


def _join_instructions(
    stack: Sequence[Middleware], tools: frozenset[str]
) -> Callable[[ReadonlyContext], Any]:
    """Return a function for ADK that joins the middleware's instructions.

    In a string ADK would replace `{name}` from the session's state, and fail on JSON.
    """

    async def provide(context: ReadonlyContext) -> str:
        texts = [await each.instruction(context, tools) for each in stack]
        return "\n".join(text for text in texts if text)

    return provide


class BaseInstructions(Middleware):
    """The agent's own prompt, general instructions, and how a sub-agent ends.

    Args:
        own: The agent's own prompt.
        is_subagent: Whether another agent reads the result.
        for_model: The texts for its model.
    """

    def __init__(self, own: str | None, *, is_subagent: bool, for_model: str = "") -> None:
        parts = [own.strip() + "\n"] if own and own.strip() else []
        parts.append(prompts.WORK + for_model)
        if is_subagent:
            parts.append(prompts.SUBAGENT)
        self._text = "\n".join(parts)

    async def instruction(self, context: ReadonlyContext, tools: frozenset[str]) -> str:
        """Return the instructions, which never change."""
        del context, tools
        return self._text


@dataclass(frozen=True)
class AgentFiles:
    """The files of one agent, looked up for each call of a tool."""

    unchecked: BackendSource
    """Without the agent's rules, for sub-agents, who have them too."""
    own: BackendSource
    """Without the folders that the harness stores for the agent."""
    shown: BackendSource
    """The file tools with these folders."""
    may_execute: bool
    """Whether there is a shell; True for a factory, of which only a call can tell."""


def agent_files(
    backend: Backend | BackendFactory | None, history_path: str, gate: PermissionGate
) -> AgentFiles:
    """Return how an agent's files are found.

    Args:
        backend: The files, a function that finds them in the session's state, or None for the
            state itself.
        gate: Keeps the agent's rules.
        history_path: The folder of the messages that a summary replaced.
    """
    if backend is None:
        in_state: BackendSource = lambda context: StateBackend(context.state)  # noqa: E731 - typed
        allowed: BackendSource = lambda context: gate.files(in_state(context), context)  # noqa: E731 - typed
        return AgentFiles(in_state, allowed, allowed, may_execute=False)
    unchecked = _source(backend)

    def own(context: Any) -> Backend:
        return gate.files(unchecked(context), context)

    return AgentFiles(
        unchecked,
        own,
        lambda context: with_artifacts(own(context), context.state, history=history_path),
        may_execute=callable(backend) or isinstance(backend, Shell),
    )


def _source(backend: Backend | BackendFactory) -> BackendSource:
    if callable(backend):
        factory = backend
        return lambda context: factory(context.state)
    return lambda _: backend


def join_tools(stack: Sequence[Middleware]) -> list[BaseTool]:
    """Return the tools of all middleware, in order."""
    return [tool for each in stack for tool in each.tools()]


def chosen_tools(built_in: Sequence[Middleware], names: Collection[str] | None) -> list[BaseTool]:
    """Return the built-in tools with these names; all of them for None.

    Raises:
        ValueError: There is no built-in tool of a name.
    """
    tools = join_tools(built_in)
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
        if isinstance(tool, CheckedTool):
            tool.check_model(model)


def approval_gate(
    interrupt_on: InterruptOn,
    inherited: InterruptOn,
    built_in: Sequence[Middleware],
    tools: Sequence[AgentTool],
) -> ApprovalGate:
    """Return an agent's approval gate.

    Its policy may name every built-in tool, because it applies to sub-agents too.
    """
    own = join_tools(built_in)
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
    """Return whether a tool represents one sub-agent."""
    return bool(getattr(tool, "delegates_to_one", False))


def delegates(tool: AgentTool) -> bool:
    """Return whether a toolset has tools of its own that delegate, such as `task`."""
    return bool(getattr(tool, "delegates", False))
