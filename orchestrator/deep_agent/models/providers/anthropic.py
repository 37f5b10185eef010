"""Claude over Anthropic's own client, which makes one attempt: ResilientModel retries."""

# mypy: disable-error-code="name-defined"
# (a subclass of an ADK model names PIL, which is not installed)
from __future__ import annotations

import contextlib
import os
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator
from typing import Any

from anthropic import NOT_GIVEN, AsyncAnthropic, DefaultAsyncHttpxClient, Timeout
from google.adk.models.anthropic_llm import AnthropicLlm, content_to_message_param
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse

from fanout.orchestrator.deep_agent.models import access
from fanout.orchestrator.deep_agent.models.own_search import is_search_request
from fanout.orchestrator.deep_agent.models.providers.anthropic_replies import CheckedAnthropic
from fanout.orchestrator.deep_agent.models.providers.anthropic_search import SEARCH_TOOL, searched
from fanout.orchestrator.deep_agent.models.providers.clients import (
    CONNECT_TIMEOUT_SECONDS,
    client_of,
)
from fanout.orchestrator.deep_agent.models.providers.warm_up import NO_KEY, UNREACHABLE_URL, warm_up

VARIABLES = (
    *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE"),
    "ANTHROPIC_BASE_URL",
)

MAX_OUTPUT_TOKENS = 16_000
"""The size of a reply: a file of 60 kB. Anthropic counts it against the context window, so this is
not the maximum."""
MAX_OUTPUT_TOKENS_OF_CLAUDE_3 = 4_096
"""The maximum of every model of that family."""

_WITHOUT_SEARCH = (
    "claude-2",
    "claude-instant",
    "claude-3-opus",
    "claude-3-sonnet",
    "claude-3-haiku",
)


def _make_client() -> AsyncAnthropic:
    needs_key = access.key_variables("claude-")
    has_key = any(os.environ.get(name) for name in access.CREDENTIALS_OF_ANTHROPIC)
    key = None if needs_key or has_key else access.NO_KEY_NEEDED
    # ResilientModel limits the time of a reply.
    timeout = Timeout(None, connect=CONNECT_TIMEOUT_SECONDS)
    return AsyncAnthropic(
        api_key=key,
        max_retries=0,
        timeout=timeout,
        http_client=DefaultAsyncHttpxClient(follow_redirects=False),
    )


def _on_unreachable_url() -> AnthropicLlm:
    return AnthropicLlm(
        client=AsyncAnthropic(api_key=NO_KEY, base_url=UNREACHABLE_URL, max_retries=0)
    )


class CheckedClaude(AnthropicLlm):
    """ADK's class of Anthropic's API, with replies that it can read."""

    async def _get_anthropic_client(self) -> Any:
        client = await super()._get_anthropic_client()
        return CheckedAnthropic(client.with_options(max_retries=0))


class Claude(AnthropicLlm):
    """A model of Anthropic's API."""

    @property
    def key_variables(self) -> tuple[str, ...]:
        """See `KeyedModel`."""
        return access.key_variables("claude-")

    @property
    def searches_web(self) -> bool:
        """See `SearchingModel`: all but the first models of Claude 3."""
        return not self.model.startswith(_WITHOUT_SEARCH)

    def client_for(self, loop: AbstractEventLoop | None = None) -> AsyncAnthropic:
        """Return the client of a loop; creating it blocks."""
        return client_of(loop, _make_client, VARIABLES)

    def preload(self, loop: AbstractEventLoop) -> None:
        """See `Preloading.preload`."""
        self.client_for(loop)
        warm_up(_on_unreachable_url)

    async def _get_anthropic_client(self) -> Any:
        return CheckedAnthropic(self.client_for())

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield ADK's responses, or those of a search."""
        if is_search_request(llm_request):
            replies = self._searched(llm_request)
        else:
            replies = super().generate_content_async(llm_request, stream=stream)
        async with contextlib.aclosing(replies):
            async for response in replies:
                yield response

    async def _searched(self, llm_request: LlmRequest) -> AsyncGenerator[LlmResponse, None]:
        messages = [content_to_message_param(content) for content in llm_request.contents]
        request = self._build_anthropic_kwargs(
            llm_request, messages, [SEARCH_TOOL], NOT_GIVEN, NOT_GIVEN
        )
        async with contextlib.aclosing(searched(self.client_for(), request)) as replies:
            async for response in replies:
                yield response


def claude(name: str) -> Claude:
    """Return the model of a name."""
    is_old = name.startswith("claude-3-")
    return Claude(
        model=name, max_tokens=MAX_OUTPUT_TOKENS_OF_CLAUDE_3 if is_old else MAX_OUTPUT_TOKENS
    )
