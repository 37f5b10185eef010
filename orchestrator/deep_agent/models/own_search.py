"""The web search that a service runs for its own models: Google's Gemini and Anthropic's Claude."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.genai import types

from .retries import ResilientModel


@runtime_checkable
class SearchingModel(Protocol):
    """A model whose client knows `search_request`."""

    @property
    def searches_web(self) -> bool:
        """Whether the service searches for this model."""


def searching(model: BaseLlm) -> BaseLlm | None:
    """Return the model, of a list those models, whose service searches for them; None for none."""
    if isinstance(model, ResilientModel):
        return model.only(_searches)
    return model if _searches(model) else None


def search_request(model: BaseLlm, prompt: str) -> LlmRequest:
    """Return a request that the model answers from the web, with pages in its grounding.

    It has no other tools: Gemini 2.5 refuses a search with function calls, and of Claude's search
    ADK keeps nothing for the next request.
    """
    tools = [
        types.Tool(google_search=types.GoogleSearch()),
        types.Tool(url_context=types.UrlContext()),
    ]
    return LlmRequest(
        model=model.model,
        contents=[types.UserContent(prompt)],
        config=types.GenerateContentConfig(tools=list(tools)),
    )


def is_search_request(request: LlmRequest) -> bool:
    """Return whether a request asks the service to search."""
    tools = request.config.tools or ()
    return any(isinstance(tool, types.Tool) and tool.google_search for tool in tools)


def _searches(model: BaseLlm) -> bool:
    return isinstance(model, SearchingModel) and model.searches_web
