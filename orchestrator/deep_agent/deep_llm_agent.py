"""An ADK agent with callbacks that run before a request's contents are made.

ADK creates a flow for each run and has no public way to give an agent its own; it reads the flow
from `_llm_flow`. The flow's processors, their names and their order are its documented interface.
"""

# mypy: disable-error-code="name-defined"
# (a subclass of an ADK model names PIL, which is not installed)
from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.events import Event
from google.adk.flows.llm_flows.base_llm_flow import BaseLlmFlow
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from pydantic import Field

from fanout.orchestrator.deep_agent.adk_private_names import BaseLlmRequestProcessor
from fanout.orchestrator.deep_agent.tool import CheckedTool

TOOLS = "agent_tools"
"""ADK's name of the processor that puts the tools into a request."""
StepCallback = Callable[[InvocationContext, LlmRequest], Awaitable[Iterable[Event]]]
"""A middleware's `before_step`."""


class DeepLlmAgent(LlmAgent):
    """An LlmAgent with callbacks that run just before the contents are made."""

    before_step_callback: list[Any] = Field(default_factory=list, exclude=True)
    """Each is a `StepCallback`; they are called in order."""

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
                    yield event
        except asyncio.CancelledError as error:
            # A frame of ADK refers to the error, whose traceback refers to it: all that the agent
            # had would be left to the garbage collector. ADK's runner keeps this error to itself.
            traceback.clear_frames(error.__traceback__)
            raise


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
