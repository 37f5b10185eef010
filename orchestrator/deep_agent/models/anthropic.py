"""Claude over Anthropic's own client, which makes one attempt: ResilientModel retries.

Replies are checked before ADK's class reads them, because it knows four kinds of blocks, always
expects a usage, and raises errors of Python at anything else. It also refuses a reply with the
blocks of Anthropic's web search, and cannot send them back: here a search is a conversation of its
own, whose pages become the reply's grounding.
"""

# mypy: disable-error-code="name-defined"
# (a subclass of an ADK model names PIL, which is not installed)
from __future__ import annotations

import contextlib
import json
import os
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from anthropic import (
    NOT_GIVEN,
    AsyncAnthropic,
    AsyncAnthropicVertex,
    DefaultAsyncHttpxClient,
    Timeout,
)
from anthropic import types as anthropic_types
from google.adk.models.anthropic_llm import (
    AnthropicLlm,
    content_to_message_param,
    message_to_generate_content_response,
)
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from . import access
from .clients import (
    CONNECT_TIMEOUT_SECONDS,
    NO_KEY,
    UNREACHABLE_URL,
    loop_client,
    warm_up,
)
from .errors import NotAReply, UnusableReply
from .own_search import is_search_request
from .replies import (
    BROKE_OFF,
    call_id,
    chat_reason,
    check_is_stream,
    marked_arguments,
    quoted,
    raise_reply_error,
    without_reply,
)

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

MAX_SEARCHES = 5
"""The most searches in one request; Anthropic bills each one in addition to the tokens."""

MAX_CONTINUATIONS = 4
"""After as many pauses (`pause_turn`) the search ends with what it has."""

SEARCH_TOOL = anthropic_types.WebSearchTool20250305Param(
    type="web_search_20250305", name="web_search", max_uses=MAX_SEARCHES
)
"""The newer versions filter pages by running code, which fewer models can and few searches need."""

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}
"""Reasons that ADK's class knows, by those of OpenAI's chat completions."""

_CONTENT = {"text": "text", "thinking": "thinking", "redacted_thinking": "data", "tool_use": "name"}
"""The kinds of blocks that ADK's class knows, each with a text that it needs."""


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
        return loop_client(loop, _make_client, VARIABLES)

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


async def searched(
    client: AsyncAnthropic, request: dict[str, Any]
) -> AsyncGenerator[LlmResponse, None]:
    """Yield the replies to a request with `SEARCH_TOOL`; more than one if the service pauses.

    Args:
        client: Anthropic's client.
        request: The arguments of `messages.create`.
    """
    blocks: list[anthropic_types.ContentBlock] = []
    for _ in range(1 + MAX_CONTINUATIONS):
        so_far = [block.model_dump(mode="json", exclude_none=True) for block in blocks]
        turn = [{"role": "assistant", "content": so_far}] if so_far else []
        message = await client.messages.create(
            **{**request, "messages": [*request["messages"], *turn]}
        )
        yield _reply(message)
        blocks += message.content
        if message.stop_reason != "pause_turn":
            return


def _reply(message: anthropic_types.Message) -> LlmResponse:
    texts = [block for block in message.content if isinstance(block, anthropic_types.TextBlock)]
    reply = message_to_generate_content_response(message.model_copy(update={"content": texts}))
    results = [
        block.content
        for block in message.content
        if isinstance(block, anthropic_types.WebSearchToolResultBlock)
    ]
    pages = [page for found in results if isinstance(found, list) for page in found]
    reply.grounding_metadata = types.GroundingMetadata(grounding_chunks=list(_chunks(pages, texts)))
    faults = [found.error_code for found in results if not isinstance(found, list)]
    if faults and not pages:
        reply.error_code = faults[0]
    return reply


def _chunks(
    pages: Iterable[anthropic_types.WebSearchResultBlock],
    texts: Sequence[anthropic_types.TextBlock],
) -> Iterable[types.GroundingChunk]:
    """Return the pages, those first that the text cites."""
    found = {page.url: page.title for page in pages}
    cited = [
        citation.url
        for text in texts
        for citation in text.citations or ()
        if isinstance(citation, anthropic_types.CitationsWebSearchResultLocation)
    ]
    for url in dict.fromkeys((*cited, *found)):
        yield types.GroundingChunk(web=types.GroundingChunkWeb(uri=url, title=found.get(url, "")))


class CheckedAnthropic:
    """Anthropic's client, as far as ADK's class uses it, with replies that the class can read.

    Args:
        client: The client.
    """

    def __init__(self, client: AsyncAnthropic | AsyncAnthropicVertex) -> None:
        self._client = client
        self.messages = self
        """The interface of messages, of which ADK's class calls `create`."""

    async def create(self, **request: Any) -> Any:
        """Send a request, and return the message or its events.

        Raises:
            ReplyFailed: The answer is an error, although its status is good.
            NotAReply: It is no answer of a model's service.
            UnusableReply: It has nothing that may be used.
        """
        answer = await self._client.messages.create(**request)
        if request.get("stream"):
            await check_is_stream(answer)
            return _checked_events(answer)
        return _checked_message(answer)


def _checked_message(message: Any) -> Any:
    raise_reply_error(message)
    if not hasattr(message, "content"):
        raise NotAReply(quoted(message))
    if message.content is None:
        raise without_reply(message, "it has no content")
    message.stop_reason = _stop_reason(message.stop_reason)
    message.content = [block for block in message.content if _is_known(block)]
    for block in message.content:
        if block.type == "tool_use":
            block.id = call_id(block.id)
            block.input = marked_arguments(block.input)
    message.usage = _counted(message.usage, anthropic_types.Usage)
    return message


async def _checked_events(events: Any) -> AsyncIterator[Any]:
    """Yield the events of a streamed message; the arguments of a call come in one piece."""
    known: set[int] = set()
    inputs: dict[int, list[Any]] = {}
    """The arguments of calls that are not complete: what the block began with, then the pieces."""
    has_begun = is_whole = False
    async for event in events:
        raise_reply_error(event)
        if event.type == "message_start":
            has_begun = True
            event.message.usage = _counted(event.message.usage, anthropic_types.Usage)
        elif event.type == "content_block_start":
            if not _is_known(event.content_block):
                continue
            known.add(event.index)
            if event.content_block.type == "tool_use":
                event.content_block.id = call_id(event.content_block.id)
                inputs[event.index] = [event.content_block.input]
        elif event.type == "content_block_delta":
            if event.index not in known:
                continue
            if event.delta.type == "input_json_delta" and event.index in inputs:
                inputs[event.index].append(event.delta.partial_json)
                event.delta.partial_json = ""
        elif event.type == "content_block_stop" and event.index in inputs:
            yield _input_event(event.index, inputs.pop(event.index))
        elif event.type == "message_delta":
            event.usage = _counted(event.usage, anthropic_types.MessageDeltaUsage)
            event.delta.stop_reason = _stop_reason(event.delta.stop_reason)
            is_whole = is_whole or event.delta.stop_reason is not None
        is_whole = is_whole or event.type == "message_stop"
        yield event
    if not has_begun:
        raise UnusableReply("it has no content")
    if not is_whole:
        raise UnusableReply(BROKE_OFF)
    for index, pieces in inputs.items():
        yield _input_event(index, pieces)


def _input_event(index: int, pieces: list[Any]) -> Any:
    """Return the event with all arguments of a call; some services send them with its beginning."""
    given = "".join(pieces[1:]) or pieces[0]
    whole = json.dumps(marked_arguments(given))
    delta = anthropic_types.InputJSONDelta(type="input_json_delta", partial_json=whole)
    return anthropic_types.RawContentBlockDeltaEvent(
        type="content_block_delta", index=index, delta=delta
    )


def _is_known(block: Any) -> bool:
    needed = getattr(block, _CONTENT.get(str(block.type), ""), None)
    return isinstance(needed, str) and (bool(needed) or block.type != "tool_use")


def _counted(usage: Any, kind: Callable[..., Any]) -> Any:
    """Return a usage whose numbers are numbers: some services send none, or leave some out."""
    if usage is None:
        return kind(input_tokens=0, output_tokens=0)
    for name in ("input_tokens", "output_tokens"):
        setattr(usage, name, getattr(usage, name, None) or 0)
    return usage


def _stop_reason(reason: str | None) -> Any:
    """Return a reason that ADK's class knows.

    Raises:
        UnusableReply: The reason is unknown.
    """
    known = chat_reason(reason)
    return None if known is None else _STOP_REASONS[known]
