"""Gemini over Google's own client, which makes one attempt: ResilientModel retries.

Replies are checked before the client reads them, because it takes an error with a good status for
an empty reply, and raises errors of Python at arguments that are no object.
"""

# mypy: disable-error-code="name-defined"
# (a subclass of an ADK model names PIL, which is not installed)
from __future__ import annotations

import json
import os
from asyncio import AbstractEventLoop
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from google.adk.models.gemma_llm import Gemma as AdkGemma
from google.adk.models.google_llm import Gemini as AdkGemini
from google.genai import Client, types

from ..adk_internals import check_answers
from . import access
from .clients import (
    NO_KEY,
    UNREACHABLE_URL,
    loop_client,
    warm_up,
)
from .errors import NotAReply, UnusableReply, find_error
from .replies import (
    BROKE_OFF,
    call_id,
    ending_failure,
    marked_arguments,
    quoted,
    without_reply,
)

VARIABLES = (
    "GOOGLE_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_GEMINI_BASE_URL",
    "GOOGLE_VERTEX_BASE_URL",
    "GOOGLE_GENAI_USE_VERTEXAI",
    "GOOGLE_GENAI_USE_ENTERPRISE",
    "GOOGLE_CLOUD_PROJECT",
    "GOOGLE_CLOUD_LOCATION",
)

_RESOURCES = "projects/"
"""The beginning of a model's full resource name, which only Vertex AI knows."""

_WITHOUT_REDIRECTS: dict[str, Any] = {
    "http_options": {
        # As httpx and aiohttp call it; Google's client uses either, and drops the other's.
        "async_client_args": {"follow_redirects": False, "allow_redirects": False}
    }
}

_WITHOUT_SEARCH = ("gemini-1.", "gemini-2.0")
_PARTS = frozenset({"candidates", "promptFeedback", "usageMetadata", "modelVersion", "responseId"})
"""What a reply, or a piece of one, has some of."""

_KNOWN_REASONS = frozenset(reason.value for reason in types.FinishReason)


def _make_client() -> Client:
    # ADK sets the headers, versions and defaults; one attempt, because the client ignores
    # Retry-After.
    has_key = any(os.environ.get(name) for name in access.CREDENTIALS_OF_GOOGLE)
    needs_none = not has_key and not access.key_variables("gemini-")
    client = AdkGemini(
        client_kwargs=_WITHOUT_REDIRECTS
        | ({"api_key": access.NO_KEY_NEEDED} if needs_none else {}),
        retry_options=types.HttpRetryOptions(attempts=1),
    ).api_client
    return check_answers(client, checked_text, checked_pieces)


def _make_vertex_client() -> Client:
    # By the model's name ADK takes Vertex AI.
    one_attempt = types.HttpRetryOptions(attempts=1)
    client = AdkGemini(
        model=_RESOURCES, client_kwargs=_WITHOUT_REDIRECTS, retry_options=one_attempt
    ).api_client
    return check_answers(client, checked_text, checked_pieces)


def _on_unreachable_url() -> AdkGemini:
    one_attempt = types.HttpRetryOptions(attempts=1)
    return AdkGemini(
        base_url=UNREACHABLE_URL, client_kwargs={"api_key": NO_KEY}, retry_options=one_attempt
    )


class CheckedGemini(AdkGemini):
    """ADK's class of Google's API, with replies that it can read."""

    @property
    def api_client(self) -> Client:
        """The client that ADK's class makes."""
        return check_answers(super().api_client, checked_text, checked_pieces)


class Gemini(AdkGemini):
    """A model of Google's API or of Vertex AI."""

    @property
    def key_variables(self) -> tuple[str, ...]:
        """See `KeyedModel`; Vertex AI has credentials of Google's own."""
        return () if self.model.startswith(_RESOURCES) else access.key_variables("gemini-")

    @property
    def searches_web(self) -> bool:
        """See `SearchingModel`: Gemini from 2.5 on, which also reads the pages that it finds."""
        name = self.model.rpartition("/")[2]
        return name.startswith("gemini-") and not name.startswith(_WITHOUT_SEARCH)

    def client_for(self, loop: AbstractEventLoop | None = None) -> Client:
        """Return the client of a loop; creating it blocks."""
        make = _make_vertex_client if self.model.startswith(_RESOURCES) else _make_client
        return loop_client(loop, make, VARIABLES)

    def preload(self, loop: AbstractEventLoop) -> None:
        """See `Preloading.preload`."""
        self.client_for(loop)
        warm_up(_on_unreachable_url)

    @property
    def api_client(self) -> Client:
        """The running loop's client."""
        return self.client_for()


class Gemma(AdkGemma, Gemini):
    """A model of Gemma 3, which takes its tools and calls as text."""


def checked_text(text: str) -> str:
    """Return the text of a whole reply, changed where the client could not read it.

    Raises:
        ReplyFailed: The answer is an error.
        NotAReply: It is no answer of a model's service.
        UnusableReply: It ended for a reason that is unknown.
    """
    if not text.strip():
        raise UnusableReply("its answer was empty")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        raise NotAReply(quoted(text)) from None
    return json.dumps(body) if check_body(body) else text


def check_body(body: Any) -> bool:
    """Check a reply, or a piece of one, and change in place what the client could not read.

    Returns whether anything was changed; raises as `checked_text`.
    """
    if (failed := find_error(body)) is not None:
        raise failed
    if not isinstance(body, dict):
        raise NotAReply(quoted(body))
    if body and not body.keys() & _PARTS:
        raise without_reply(body, "it has no candidates")
    is_changed = False
    for candidate in body.get("candidates") or ():
        reason = str(candidate.get("finishReason") or "")
        if reason and reason.upper() not in _KNOWN_REASONS:
            raise ending_failure(reason, candidate.get("finishMessage"))
        content = candidate.get("content")
        for part in (content.get("parts") if isinstance(content, dict) else None) or ():
            call = part.get("functionCall") if isinstance(part, dict) else None
            if not isinstance(call, dict):
                continue
            read = {"args": marked_arguments(call.get("args")), "id": call_id(call.get("id"))}
            changed = {name: read[name] for name in read.keys() & call if read[name] != call[name]}
            call.update(changed)
            is_changed = is_changed or bool(changed)
    return is_changed


async def checked_pieces(pieces: AsyncIterable[Any]) -> AsyncIterator[Any]:
    """Yield the pieces of a streamed reply, changed where the client could not read them.

    Raises:
        ReplyFailed, NotAReply: As `checked_text`.
        UnusableReply: It ended for a reason that is unknown, or no piece says that it ended.
    """
    is_begun = is_whole = False
    async for piece in pieces:
        check_body(piece)
        is_begun, is_whole = True, is_whole or _has_end(piece)
        yield piece
    if is_begun and not is_whole:
        raise UnusableReply(BROKE_OFF)


def _has_end(piece: dict[str, Any]) -> bool:
    candidates = piece.get("candidates") or ()
    is_blocked = (piece.get("promptFeedback") or {}).get("blockReason")
    return bool(is_blocked) or any(each.get("finishReason") for each in candidates)
