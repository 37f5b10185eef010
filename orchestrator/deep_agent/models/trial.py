"""One small request to a model: does it answer, does it stream, does it take tools?"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from google.adk.models.llm_request import LlmRequest
from google.genai import types

from fanout.orchestrator.deep_agent.failures import (
    ModelDenied,
    ModelFailed,
    ModelRefused,
    ModelReplyUnusable,
)
from fanout.orchestrator.deep_agent.models.resolve import resolve_model
from fanout.orchestrator.deep_agent.models.retries import RetryPolicy

TRIAL_SECONDS = 120.0
"""For one answer: a local server may load the model first."""
MAX_TRIAL_TOKENS = 256
"""Of an answer: enough for a call, little enough for a slow machine."""

_STATUSES_OF_REQUESTS = {500, 501}
"""What servers also answer to a request that they do not take: llama.cpp, to tools."""

TOOL = types.FunctionDeclaration(
    name="report_ready",
    description="Reports that you are ready.",
    parameters_json_schema={"type": "object", "properties": {}},
)


@dataclass(frozen=True)
class Trial:
    """What became of a request to a model."""

    fault: str = ""
    """Why it did not answer; empty: it did."""
    seconds: float = 0.0
    """How long its answer took."""
    streams: bool = True
    takes_tools: bool = True
    calls_tools: bool = False
    """Whether it called the tool that it was asked to call."""
    refusal: str = ""
    """What the service said when it refused tools, or to stream."""


async def try_model(name: str) -> Trial:
    """Ask a model to call a tool, once; if that is refused, without streaming or without tools.

    Args:
        name: A name as for `resolve_model`.

    Raises:
        ModelNotConfigured: The name is unknown, or its key or package is missing.
    """
    first = await _asked(name, tools=True, stream=True)
    if not isinstance(first, ModelFailed):
        return first
    refusal = _words(first)
    is_about_request = isinstance(first, (ModelRefused, ModelReplyUnusable))
    is_about_request = is_about_request and not isinstance(first, ModelDenied)
    if is_about_request or first.status in _STATUSES_OF_REQUESTS:
        for tools, stream in ((True, False), (False, True), (False, False)):
            again = await _asked(name, tools=tools, stream=stream)
            if isinstance(again, Trial):
                return replace(again, streams=stream, takes_tools=tools, refusal=refusal)
    return Trial(fault=refusal)


async def _asked(name: str, *, tools: bool, stream: bool) -> Trial | ModelFailed:
    model = resolve_model(
        name, agent_name="trial", retries=RetryPolicy(attempts=1, reply_seconds=TRIAL_SECONDS)
    )
    config = types.GenerateContentConfig(
        max_output_tokens=MAX_TRIAL_TOKENS,
        tools=[types.Tool(function_declarations=[TOOL])] if tools else None,
    )
    text = f"Call the tool {TOOL.name}." if tools else "Say that you are ready."
    request = LlmRequest(contents=[types.UserContent(text)], config=config)
    begun = time.monotonic()
    try:
        responses = model.generate_content_async(request, stream=stream)
        replies = [response async for response in responses if not response.partial]
    except ModelFailed as failure:
        return failure
    has_called = any(each.get_function_calls() for each in replies)
    return Trial(seconds=time.monotonic() - begun, calls_tools=has_called)


def _words(failure: ModelFailed) -> str:
    return str(failure).replace(", after all retries", "")
