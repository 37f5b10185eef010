"""OpenAI's two interfaces over its own client, which makes one attempt: ResilientModel retries."""

# mypy: disable-error-code="name-defined"
# (a subclass of an ADK model names PIL, which is not installed)
from __future__ import annotations

import contextlib
import json
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.integrations.openai import OpenAILlm, OpenAIResponsesLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from openai import AsyncOpenAI, Timeout

from fanout.orchestrator.deep_agent.models.errors import ReplyFailed
from fanout.orchestrator.deep_agent.models.providers.clients import (
    CONNECT_TIMEOUT_SECONDS,
    client_of,
)
from fanout.orchestrator.deep_agent.models.providers.warm_up import NO_KEY, UNREACHABLE_URL, warm_up

VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID")


def _make_client() -> AsyncOpenAI:
    # ResilientModel limits the time of a reply.
    return AsyncOpenAI(max_retries=0, timeout=Timeout(None, connect=CONNECT_TIMEOUT_SECONDS))


def _client_on_unreachable_url() -> AsyncOpenAI:
    return AsyncOpenAI(api_key=NO_KEY, base_url=UNREACHABLE_URL, max_retries=0)


def _chat_on_unreachable_url() -> OpenAILlm:
    return OpenAILlm(client=_client_on_unreachable_url())


def _responses_on_unreachable_url() -> OpenAIResponsesLlm:
    return OpenAIResponsesLlm(client=_client_on_unreachable_url())


class ChatCompletions(OpenAILlm):
    """The chat completions interface, which other services also implement."""

    max_tokens: int | None = None  # type: ignore[assignment] # ADK's 4096 would cut a longer file off
    """The size of a reply; None for the model's own limit."""

    @property
    def key_variables(self) -> tuple[str, ...]:
        """See `KeyedModel`."""
        return ("OPENAI_API_KEY",)

    def client_for(self, loop: AbstractEventLoop | None = None) -> AsyncOpenAI:
        """Return the client of a loop; creating it blocks."""
        return client_of(loop, _make_client, VARIABLES)

    def preload(self, loop: AbstractEventLoop) -> None:
        """See `Preloading.preload`."""
        self.client_for(loop)
        warm_up(_chat_on_unreachable_url)

    @property
    def _openai_client(self) -> AsyncOpenAI:
        return self.client_for()


class Responses(OpenAIResponsesLlm):
    """The responses interface, the only one of some models; the service stores no conversation."""

    store: bool | None = False
    include_response_metadata: bool = False
    """True would put each reply into the journal twice."""

    @property
    def key_variables(self) -> tuple[str, ...]:
        """See `KeyedModel`."""
        return ("OPENAI_API_KEY",)

    def client_for(self, loop: AbstractEventLoop | None = None) -> AsyncOpenAI:
        """Return the client of a loop; creating it blocks."""
        return client_of(loop, _make_client, VARIABLES)

    def preload(self, loop: AbstractEventLoop) -> None:
        """See `Preloading.preload`."""
        self.client_for(loop)
        warm_up(_responses_on_unreachable_url)

    @property
    def _openai_client(self) -> AsyncOpenAI:
        return self.client_for()

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield ADK's responses.

        Raises:
            ReplyFailed: The service reports that the reply failed.
        """
        replies = super().generate_content_async(llm_request, stream=stream)
        async with contextlib.aclosing(replies):
            async for response in replies:
                if response.error_code == types.FinishReason.OTHER:
                    raise _failure(response.error_message)
                yield response


def _failure(message: str | None) -> ReplyFailed:
    """Return the failure for an error object, or for a streamed event with one."""
    found: dict[str, Any] = json.loads(message or "{}")
    error = (found.get("response") or {}).get("error") or found
    return ReplyFailed(
        str(error.get("message") or "the reply failed"), code=str(error.get("code") or "")
    )
