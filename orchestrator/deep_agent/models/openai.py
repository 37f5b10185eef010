"""OpenAI's two interfaces over its own client, which makes one attempt: ResilientModel retries."""

# mypy: disable-error-code="name-defined"
# (a subclass of an ADK model names PIL, which is not installed)
from __future__ import annotations

import contextlib
import json
import os
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, AsyncIterator
from types import SimpleNamespace
from typing import Any

from google.adk.integrations.openai import OpenAILlm, OpenAIResponsesLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, Timeout

from . import access
from .clients import (
    CONNECT_TIMEOUT_SECONDS,
    NO_KEY,
    UNREACHABLE_URL,
    loop_client,
    warm_up,
)
from .errors import NotAReply, ReplyFailed, UnusableReply
from .replies import (
    BROKE_OFF,
    chat_reason,
    check_is_stream,
    checked_reply,
    checked_stream,
    ending_failure,
    marked,
    quoted,
    raise_reply_error,
    without_reply,
)

VARIABLES = (
    *("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"),
    *("OPENAI_ORG_ID", "OPENAI_PROJECT_ID"),
)
OLLAMA_VARIABLES = ("OLLAMA_HOST", "OLLAMA_API_KEY")

_STATUSES = frozenset({None, "completed", "incomplete", "failed", "cancelled"})
"""How a reply of the responses interface may end."""


def _make_client() -> AsyncOpenAI:
    service = access.find_service(access.CHAT)
    is_own = service is not None and service.is_own_server
    return _client(
        service.address if service else "",
        os.environ.get("OPENAI_API_KEY") or (access.NO_KEY_NEEDED if is_own else None),
    )


def _make_ollama_client() -> AsyncOpenAI:
    service = access.find_service(access.OLLAMA)
    address = f"{service.address}/v1" if service else ""
    return _client(address, os.environ.get("OLLAMA_API_KEY") or access.NO_KEY_NEEDED)


def _client(address: str, key: str | None) -> AsyncOpenAI:
    # ResilientModel limits the time of a reply.
    timeout = Timeout(None, connect=CONNECT_TIMEOUT_SECONDS)
    return AsyncOpenAI(
        api_key=key,
        base_url=address or None,
        max_retries=0,
        timeout=timeout,
        http_client=DefaultAsyncHttpxClient(follow_redirects=False),
    )


def _client_on_unreachable_url() -> AsyncOpenAI:
    return AsyncOpenAI(api_key=NO_KEY, base_url=UNREACHABLE_URL, max_retries=0)


def _chat_on_unreachable_url() -> OpenAILlm:
    return OpenAILlm(client=_client_on_unreachable_url())


def _responses_on_unreachable_url() -> OpenAIResponsesLlm:
    return OpenAIResponsesLlm(client=_client_on_unreachable_url())


class CheckedChat(OpenAILlm):
    """ADK's class of chat completions, with replies that it can read."""

    @property
    def _openai_client(self) -> Any:
        client = self.client_for()

        async def create(**request: Any) -> Any:
            answer = await client.chat.completions.create(**request)
            if request.get("stream"):
                await check_is_stream(answer)
                return checked_stream(answer, marked)
            return checked_reply(answer, marked)

        return SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))

    def client_for(self, loop: AbstractEventLoop | None = None) -> AsyncOpenAI:
        """Return ADK's client, which makes one attempt; creating it blocks."""
        del loop
        return super()._openai_client.with_options(max_retries=0)


class CheckedResponses(OpenAIResponsesLlm):
    """ADK's class of the responses interface, with replies that it can read."""

    @property
    def _openai_client(self) -> Any:
        client = self.client_for()

        async def create(**request: Any) -> Any:
            answer = await client.responses.create(**request)
            if request.get("stream"):
                await check_is_stream(answer)
                return _checked_events(answer)
            return _checked_response(answer)

        return SimpleNamespace(responses=SimpleNamespace(create=create))

    def client_for(self, loop: AbstractEventLoop | None = None) -> AsyncOpenAI:
        """Return ADK's client, which makes one attempt; creating it blocks."""
        del loop
        return super()._openai_client.with_options(max_retries=0)

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
                    _settle_failure(response)
                yield response


class _OpenAiAccess:
    @property
    def key_variables(self) -> tuple[str, ...]:
        """See `KeyedModel`."""
        return access.key_variables(access.CHAT)

    def client_for(self, loop: AbstractEventLoop | None = None) -> AsyncOpenAI:
        """Return the client of a loop; creating it blocks."""
        return loop_client(loop, _make_client, VARIABLES)


class ChatCompletions(_OpenAiAccess, CheckedChat):
    """The chat completions interface, which other services also implement."""

    max_tokens: int | None = None  # type: ignore[assignment] # ADK's 4096 would cut a longer file off
    """The size of a reply; None for the model's own limit."""

    def preload(self, loop: AbstractEventLoop) -> None:
        """See `Preloading.preload`."""
        self.client_for(loop)
        warm_up(_chat_on_unreachable_url)


class Ollama(ChatCompletions):
    """A model of Ollama, whose address is OLLAMA_HOST and which needs no key."""

    @property
    def key_variables(self) -> tuple[str, ...]:
        """See `KeyedModel`."""
        return ()

    def client_for(self, loop: AbstractEventLoop | None = None) -> AsyncOpenAI:
        """Return the client of a loop; creating it blocks."""
        return loop_client(loop, _make_ollama_client, OLLAMA_VARIABLES)


class Responses(_OpenAiAccess, CheckedResponses):
    """The responses interface, the only one of some models; the service stores no conversation."""

    store: bool | None = False
    include_response_metadata: bool = False
    """True would put each reply into the journal twice."""

    def preload(self, loop: AbstractEventLoop) -> None:
        """See `Preloading.preload`."""
        self.client_for(loop)
        warm_up(_responses_on_unreachable_url)


def _checked_response(reply: Any) -> Any:
    """Return a reply of the responses interface, changed so that ADK's class can read it."""
    raise_reply_error(reply)
    if not hasattr(reply, "output"):
        raise NotAReply(quoted(reply))
    if reply.output is None:
        raise without_reply(reply, "it has no output")
    if reply.status not in _STATUSES:
        raise ending_failure(str(reply.status))
    for item in reply.output:
        if getattr(item, "type", None) == "function_call":
            item.arguments = marked(item.arguments)
    return reply


async def _checked_events(events: Any) -> AsyncIterator[Any]:
    """Yield the events of a streamed reply, the last of which has the whole reply."""
    is_whole = False
    async for event in events:
        raise_reply_error(event)
        if event.type in {"response.completed", "response.incomplete"}:
            event.response, is_whole = _checked_response(event.response), True
        is_whole = is_whole or event.type in {"response.failed", "error"}
        yield event
    if not is_whole:
        raise UnusableReply(BROKE_OFF)


def _settle_failure(response: LlmResponse) -> None:
    """Make a reply that was stopped for its content say so, in place.

    Raises:
        ReplyFailed: It ended with an error: an object, or a streamed event with one.
        UnusableReply: It ended for a reason that is unknown.
    """
    found: dict[str, Any] = json.loads(response.error_message or "{}")
    error = (found.get("response") or {}).get("error") or found
    if reason := error.get("reason"):
        chat_reason(reason)
        response.finish_reason, response.error_code = types.FinishReason.SAFETY, None
        response.error_message = None
    else:
        message, code = error.get("message") or "the reply failed", error.get("code")
        raise ReplyFailed(str(message), code=str(code or ""))
