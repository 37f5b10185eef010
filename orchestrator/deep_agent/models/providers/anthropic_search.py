"""Anthropic's own web search, as replies in ADK's words.

ADK's class refuses a reply with the blocks of a search, and cannot send them back. Here a search is
a conversation of its own, whose pages become the reply's grounding.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any

from anthropic import AsyncAnthropic
from anthropic import types as claude
from google.adk.models.anthropic_llm import message_to_generate_content_response
from google.adk.models.llm_response import LlmResponse
from google.genai import types

MAX_SEARCHES = 5
"""In one request; Anthropic bills each one beside the tokens."""

MAX_CONTINUATIONS = 4
"""After as many pauses (`pause_turn`) the search ends with what it has."""

SEARCH_TOOL = claude.WebSearchTool20250305Param(
    type="web_search_20250305", name="web_search", max_uses=MAX_SEARCHES
)
"""The newer versions filter pages by running code, which fewer models can and few searches need."""


async def searched(
    client: AsyncAnthropic, request: dict[str, Any]
) -> AsyncGenerator[LlmResponse, None]:
    """Yield the replies to a request with `SEARCH_TOOL`; more than one if the service pauses.

    Args:
        client: Anthropic's client.
        request: The arguments of `messages.create`.
    """
    blocks: list[claude.ContentBlock] = []
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


def _reply(message: claude.Message) -> LlmResponse:
    texts = [block for block in message.content if isinstance(block, claude.TextBlock)]
    reply = message_to_generate_content_response(message.model_copy(update={"content": texts}))
    results = [
        block.content
        for block in message.content
        if isinstance(block, claude.WebSearchToolResultBlock)
    ]
    pages = [page for found in results if isinstance(found, list) for page in found]
    reply.grounding_metadata = types.GroundingMetadata(grounding_chunks=list(_chunks(pages, texts)))
    faults = [found.error_code for found in results if not isinstance(found, list)]
    if faults and not pages:
        reply.error_code = faults[0]
    return reply


def _chunks(
    pages: Iterable[claude.WebSearchResultBlock], texts: Sequence[claude.TextBlock]
) -> Iterable[types.GroundingChunk]:
    """Return the pages, those first that the text cites."""
    found = {page.url: page.title for page in pages}
    cited = [
        citation.url
        for text in texts
        for citation in text.citations or ()
        if isinstance(citation, claude.CitationsWebSearchResultLocation)
    ]
    for url in dict.fromkeys((*cited, *found)):
        yield types.GroundingChunk(web=types.GroundingChunkWeb(uri=url, title=found.get(url, "")))
