"""An ADK agent with additional processors, which run before a request's contents are made.

ADK creates a flow for each run and has no public way to give an agent its own; it reads the flow
from `_llm_flow`. The flow's processors, their names and their order are its documented interface.
"""

# mypy: disable-error-code="name-defined"
# (a subclass of an ADK model names PIL, which is not installed)
from __future__ import annotations

from typing import Any

from google.adk.agents import LlmAgent
from google.adk.flows.llm_flows._base_llm_processor import BaseLlmRequestProcessor
from google.adk.flows.llm_flows.base_llm_flow import BaseLlmFlow
from pydantic import Field


class DeepLlmAgent(LlmAgent):
    """An LlmAgent with its own request processors, run just before the contents are made."""

    request_processors: list[Any] = Field(default_factory=list, exclude=True)
    """Instances of `BaseLlmRequestProcessor` with unique names."""

    @property
    def _llm_flow(self) -> BaseLlmFlow:
        flow = super()._llm_flow
        processors: list[BaseLlmRequestProcessor] = self.request_processors
        for processor in processors:
            flow.insert_request_processor_before("compaction", processor)
        return flow
