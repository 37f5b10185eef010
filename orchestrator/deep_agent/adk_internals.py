"""Where fanout reaches behind ADK's public interface, and behind that of Google's client.

No other module names a private name of theirs or overrides a private method of ADK's agents.

ADK may change them in any release, so pyproject.toml allows one minor version of it, the one that
`tests/unit/deep_agent/test_adk_private_names.py` passes with; `make newest-adk` tries the newest.

`DeepLlmAgent` is an ADK agent with callbacks that run before a request's contents are made. ADK
creates a flow for each run and has no public way to give an agent its own; it reads the flow from
`_llm_flow`. The flow's processors, their names and their order are its documented interface.
"""

# mypy: disable-error-code="name-defined"
# (a subclass of an ADK model names PIL, which is not installed)
from __future__ import annotations

import asyncio
import traceback
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from google.adk.agents import LlmAgent

# The type of `RunConfig.streaming_mode`, which ADK exports nowhere.
from google.adk.agents._streaming_mode import StreamingMode
from google.adk.agents.context import Context
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.apps import compaction
from google.adk.events import Event, _rewind_events

# The base class of what `BaseLlmFlow.insert_request_processor_before`, a public method, takes.
from google.adk.flows.llm_flows._base_llm_processor import BaseLlmRequestProcessor
from google.adk.flows.llm_flows.base_llm_flow import BaseLlmFlow
from google.adk.flows.llm_flows.context import _contents
from google.adk.flows.llm_flows.tools import _functions
from google.adk.models import registry

# The type of `BaseLlm.capabilities`, a public property.
from google.adk.models._capabilities import LlmCapabilities
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.workflow import BaseNode
from google.genai import Client
from pydantic import Field

from .tool import CheckedTool

__all__ = [
    "BaseLlmRequestProcessor",
    "DeepLlmAgent",
    "LlmCapabilities",
    "StreamingMode",
    "call_ids",
    "check_answers",
    "import_litellm",
    "is_in_context",
    "is_of_tool_branch",
    "is_registered_prefix",
    "registered_models",
    "self_contained_prefix",
    "tool_declaration",
    "without_rewound",
]

OVERRIDDEN = {
    ("google.adk.agents.llm_agent", "LlmAgent"): {"_llm_flow"},
    ("google.adk.agents.base_agent", "BaseAgent"): {"_run_async_impl"},
    ("google.adk.tools.base_tool", "BaseTool"): {"_get_declaration"},
    ("google.adk.workflow", "BaseNode"): {"_run_impl"},
    ("google.adk.models.anthropic_llm", "AnthropicLlm"): {
        *("_build_anthropic_kwargs", "_get_anthropic_client"),
    },
    ("google.adk.integrations.openai", "OpenAILlm"): {"_openai_client"},
    ("google.adk.integrations.openai", "OpenAIResponsesLlm"): {"_openai_client"},
}
"""The private methods that our subclasses override or call on themselves: module and class of ADK →
names. ADK documents the second to the fourth for subclasses; for the others there is no public
way to give an agent its flow, and a model its client."""

TOOLS = "agent_tools"
"""ADK's name of the processor that puts the tools into a request."""

StepCallback = Callable[[InvocationContext, LlmRequest], Awaitable[Iterable[Event]]]
"""A middleware's `before_step`."""

ResultsCallback = Callable[[Event, Mapping[str, BaseTool], Mapping[str, Any]], Awaitable[None]]
"""A middleware's `after_tools`."""


def self_contained_prefix(events: Sequence[Event], all_events: Sequence[Event]) -> Sequence[Event]:
    """Return the longest beginning of messages after which no call is open.

    ADK's own compaction cuts there; a cut elsewhere would be undone by it.
    """
    return compaction._longest_self_contained_prefix([*events], all_events=[*all_events])


def without_rewound(events: list[Event]) -> list[Event]:
    """Return the events that no rewind of the session took back, as ADK's contents do."""
    return _rewind_events._apply_rewinds(events)


def call_ids(events: list[Event]) -> set[str]:
    """Return the ids of all function calls in events."""
    return _functions._collect_function_call_ids(events)


def is_in_context(
    branch: str | None, event: Event, isolation_scope: str | None, *, node_path: str | None
) -> bool:
    """Return whether ADK's contents include an event, by its branch and its scope."""
    return _contents._should_include_event_in_context(
        branch, event, isolation_scope, node_path=node_path
    )


def is_of_tool_branch(
    branch: str | None, event: Event, agent_name: str, function_call_ids: set[str]
) -> bool:
    """Return whether an event happened inside of a tool, where ADK's contents leave it out."""
    return _contents._is_tool_sub_branch_event(branch, event, agent_name, function_call_ids)


def tool_declaration(tool: BaseTool) -> Any:
    """Return a tool's declaration, by the name that ADK gives subclasses to override."""
    return tool._get_declaration()


def registered_models() -> Mapping[str, type[BaseLlm] | tuple[str, str]]:
    """Return ADK's registry: patterns of names → class, or module and class.

    Its public `resolve` would load LiteLLM, which takes seconds.
    """
    return registry._llm_registry_dict


def is_registered_prefix(prefix: str, class_name: str) -> bool:
    """Return whether ADK takes what is before a name's colon for a class's name."""
    return registry.LLMRegistry._match_prefix(prefix, class_name)


def import_litellm() -> None:
    """Make LiteLLM known to ADK's module; takes seconds."""
    from google.adk.models import lite_llm  # noqa: PLC0415 - an extra, and slow

    lite_llm._ensure_litellm_imported()


def check_answers(
    client: Client,
    checked_text: Callable[[str], str],
    checked_pieces: Callable[[AsyncIterable[Any]], AsyncIterator[Any]],
) -> Client:
    """Have a client's answers checked before the client reads them, and return the client.

    There is no public hook: its transports differ by what is installed, and it keeps no body of an
    answer that it has read.

    Args:
        client: The client, which is changed, once.
        checked_text: Returns the text of a whole answer, which may be another.
        checked_pieces: Yields the pieces of a streamed answer, which may be changed.
    """
    interface: Any = client._api_client
    if "_async_request" in vars(interface):
        return client
    send = interface._async_request

    async def request(http_request: Any, http_options: Any = None, stream: bool = False) -> Any:
        answer = await send(http_request=http_request, http_options=http_options, stream=stream)
        if "enerateContent" not in http_request.url:  # generateContent, streamGenerateContent
            return answer
        if stream:
            return _Pieces(answer, checked_pieces)
        text = checked_text(answer.response_stream[0] if answer.response_stream else "")
        return SimpleNamespace(headers=answer.headers, response_stream=[text])

    interface._async_request = request
    return client


class _Pieces:
    """A streamed answer of Google's client, the pieces of which are checked."""

    def __init__(
        self, answer: Any, checked: Callable[[AsyncIterable[Any]], AsyncIterator[Any]]
    ) -> None:
        self.headers = answer.headers
        self._pieces = checked(answer)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._pieces


@dataclass
class KeptFailure:
    """What ended the run of an agent that keeps its failures, while `kept_failure` is open."""

    agent: str
    """The agent's name."""
    error: Exception | None = None


_kept: ContextVar[KeptFailure | None] = ContextVar("kept_failure", default=None)


@contextmanager
def kept_failure(agent: BaseNode) -> Iterator[KeptFailure]:
    """Yield what holds the exception that ends an agent's run, for an agent that keeps it."""
    kept = KeptFailure(agent.name)
    token = _kept.set(kept)
    try:
        yield kept
    finally:
        _kept.reset(token)


class _KeepsFailure(LlmAgent):
    """An agent whose exception may be kept from ADK's runner.

    The runner logs it twice with its traceback, of which a program's set-up may print the local
    variables; whoever runs the agent raises it or reports it.
    """

    async def _run_impl(self, *, ctx: Context, node_input: Any) -> AsyncGenerator[Any, None]:
        kept = _kept.get()
        try:
            async with aclosing(super()._run_impl(ctx=ctx, node_input=node_input)) as events:
                async for event in events:
                    yield event
        except Exception as error:
            if kept is None or kept.agent != self.name:
                raise
            kept.error = error


def keep_failures(agent: LlmAgent) -> None:
    """Have an agent that was made elsewhere keep its failures while `kept_failure` is open."""
    if not isinstance(agent, _KeepsFailure):
        object.__setattr__(agent, "__class__", _keeping_class(type(agent)))


@lru_cache(maxsize=64)
def _keeping_class(kind: type[LlmAgent]) -> type[LlmAgent]:
    return type(kind.__name__, (_KeepsFailure, kind), {"__module__": kind.__module__})


class DeepLlmAgent(_KeepsFailure):
    """An LlmAgent with callbacks that run just before the contents are made."""

    before_step_callback: list[Any] = Field(default_factory=list, exclude=True)
    """Each is a `StepCallback`; they are called in order."""
    after_tools_callback: list[Any] = Field(default_factory=list, exclude=True)
    """Each is a `ResultsCallback`; they are called in order."""

    @property
    def _llm_flow(self) -> BaseLlmFlow:
        flow = super()._llm_flow
        adks = flow.get_request_processor(TOOLS)
        flow.replace_request_processor(TOOLS, _DeclaredTools(self.tools, adks))
        for callback in self.before_step_callback:
            flow.insert_request_processor_before("compaction", _BeforeStep(callback))
        return flow

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        try:
            async with aclosing(super()._run_async_impl(ctx)) as events:
                async for event in events:
                    if event.author == self.name and not event.partial:
                        await self.settle_results(event, ctx.session.state, ctx)
                    yield event
        except asyncio.CancelledError as error:
            # A frame of ADK refers to the error, whose traceback refers to it: all that the agent
            # had would be left to the garbage collector. ADK's runner keeps this error to itself.
            traceback.clear_frames(error.__traceback__)
            raise

    async def settle_results(
        self, event: Event, state: Mapping[str, Any], context: InvocationContext | None = None
    ) -> None:
        """Have the middleware see the results in an event before it is stored.

        Args:
            event: The event, which may be changed; one without results is left alone.
            state: The session's state before the event.
            context: ADK's context of the run; None between two runs, where the tools of toolsets
                are not known.
        """
        if not self.after_tools_callback or not event.get_function_responses():
            return
        found = [tool for tool in self.tools if isinstance(tool, BaseTool)]
        if context is not None:  # without a cache no request was made in this run yet
            known = context.canonical_tools_cache
            found = known or await self.canonical_tools(ReadonlyContext(context))
        tools = {tool.name: tool for tool in found}
        for callback in self.after_tools_callback:
            await callback(event, tools, state)


class _BeforeStep(BaseLlmRequestProcessor):
    """A callback as ADK's processor of requests."""

    def __init__(self, callback: StepCallback) -> None:
        self._callback = callback

    async def run_async(
        self, invocation_context: InvocationContext, llm_request: LlmRequest
    ) -> AsyncGenerator[Event, None]:
        """Yield the events that the callback returns."""
        for event in await self._callback(invocation_context, llm_request):
            yield event


class _DeclaredTools(BaseLlmRequestProcessor):
    """Puts tools into a request that are only declared there, which are most, all at once.

    ADK's own processor makes a task and a context for each tool at each step: a quarter of what a
    step costs. For tools that do more it is left to that.
    """

    name = TOOLS

    def __init__(self, tools: Sequence[Any], adks: BaseLlmRequestProcessor) -> None:
        self._tools = tools
        self._adks = adks

    async def run_async(
        self, invocation_context: InvocationContext, llm_request: LlmRequest
    ) -> AsyncGenerator[Event, None]:
        """Declare the agent's tools; yields the events of ADK's processor."""
        tools = [*self._tools]
        if invocation_context.live_request_queue is None and all(map(_is_declared_only, tools)):
            context = ReadonlyContext(invocation_context)
            llm_request.append_tools([tool for tool in tools if _is_shown(tool, context)])
            invocation_context.canonical_tools_cache = tools
            return
        async for event in self._adks.run_async(invocation_context, llm_request):
            yield event


def _is_declared_only(tool: Any) -> bool:
    """Return whether a tool leaves a request as it is, apart from its declaration."""
    method = getattr(type(tool), "process_llm_request", None)
    return method in (BaseTool.process_llm_request, CheckedTool.process_llm_request)


def _is_shown(tool: BaseTool, context: ReadonlyContext) -> bool:
    return not isinstance(tool, CheckedTool) or tool.is_shown(context)
