"""An ADK agent with callbacks that run before a request's contents are made.

ADK creates a flow for each run and has no public way to give an agent its own; it reads the flow
from `_llm_flow`. The flow's processors, their names and their order are its documented interface.
"""

# mypy: disable-error-code="name-defined"
# (a subclass of an ADK model names PIL, which is not installed)
from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events import Event
from google.adk.flows.llm_flows.base_llm_flow import BaseLlmFlow
from google.adk.models.llm_request import LlmRequest
from pydantic import Field

from fanout.orchestrator.deep_agent.adk.private_names import BaseLlmRequestProcessor

StepCallback = Callable[[InvocationContext, LlmRequest], Awaitable[Iterable[Event]]]
"""A middleware's `before_step`."""


class DeepLlmAgent(LlmAgent):
    """An LlmAgent with callbacks that run just before the contents are made."""

    before_step_callback: list[Any] = Field(default_factory=list, exclude=True)
    """Each is a `StepCallback`; they are called in order."""

    @property
    def _llm_flow(self) -> BaseLlmFlow:
        flow = super()._llm_flow
        for callback in self.before_step_callback:
            flow.insert_request_processor_before("compaction", _BeforeStep(callback))
        return flow


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
